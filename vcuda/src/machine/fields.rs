//! The fields of a TOML table, taken one by one; every mistake is told with its line.
//!
//! By hand and not derived: derive macros are built with the features that all crates of one build ask for, so the
//! machine would be compiled twice, by the build of all tests and by the script `run`, which builds the machine alone.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// What a field can be.
pub(super) trait Field: Sized {
    /// How the file has to say it.
    const WANTED: &'static str;

    /// `None`: the file says something else.
    fn of(value: &DeValue<'_>) -> Option<Self>;
}

/// The fields that nobody has taken yet.
pub(super) struct Fields<'a> {
    text: &'a str,
    start: usize,
    left: DeTable<'a>,
}

impl<'a> Fields<'a> {
    /// What `read` makes of a whole file.
    pub(super) fn of_text<T>(
        text: &'a str,
        read: impl FnOnce(&mut Fields<'a>) -> Result<T, String>,
    ) -> Result<T, String> {
        let table = DeTable::parse(text).map_err(|error| {
            let line = error.span().map_or(1, |span| line_of(text, span.start));
            format!("line {line}: {}", error.message().trim_end())
        })?;
        Fields { text, start: 0, left: table.into_inner() }.all(read)
    }

    /// What `read` makes of all of them: it takes each.
    fn all<T>(mut self, read: impl FnOnce(&mut Fields<'a>) -> Result<T, String>) -> Result<T, String> {
        let made = read(&mut self)?;
        match self.left.into_iter().min_by_key(|(name, _)| name.span().start) {
            None => Ok(made),
            Some((name, _)) => {
                Err(format!("line {}: unknown field `{}`", line_of(self.text, name.span().start), name.get_ref()))
            }
        }
    }

    fn wrong(&self, name: &str, place: usize, wanted: &str) -> String {
        format!("line {}: {name} is wanted as {wanted}", line_of(self.text, place))
    }

    /// A field with its place.
    pub(super) fn placed<T: Field>(&mut self, name: &str) -> Result<Option<Spanned<T>>, String> {
        let Some(value) = self.left.remove(name) else { return Ok(None) };
        let span = value.span();
        match T::of(value.get_ref()) {
            Some(field) => Ok(Some(Spanned::new(span, field))),
            None => Err(self.wrong(name, span.start, T::WANTED)),
        }
    }

    pub(super) fn optional<T: Field>(&mut self, name: &str) -> Result<Option<T>, String> {
        Ok(self.placed(name)?.map(Spanned::into_inner))
    }

    pub(super) fn or<T: Field>(&mut self, name: &str, usual: T) -> Result<T, String> {
        Ok(self.optional(name)?.unwrap_or(usual))
    }

    pub(super) fn required<T: Field>(&mut self, name: &str) -> Result<T, String> {
        let missing = format!("line {}: missing field `{name}`", line_of(self.text, self.start));
        self.optional(name)?.ok_or(missing)
    }

    /// What `read` makes of each `[[name]]`, with the place of each.
    pub(super) fn tables<T>(
        &mut self,
        name: &str,
        read: impl Fn(&mut Fields<'a>) -> Result<T, String>,
    ) -> Result<Vec<Spanned<T>>, String> {
        let Some(value) = self.left.remove(name) else { return Ok(Vec::new()) };
        let wanted = format!("[[{name}]]");
        let place = value.span().start;
        let DeValue::Array(tables) = value.into_inner() else { return Err(self.wrong(name, place, &wanted)) };
        let one = |table: Spanned<DeValue<'a>>| {
            let span = table.span();
            let DeValue::Table(left) = table.into_inner() else {
                return Err(self.wrong(name, span.start, &wanted));
            };
            let made = Fields { text: self.text, start: span.start, left }.all(&read)?;
            Ok(Spanned::new(span, made))
        };
        tables.into_iter().map(one).collect()
    }
}

impl Field for bool {
    const WANTED: &'static str = "true or false";

    fn of(value: &DeValue<'_>) -> Option<bool> {
        value.as_bool()
    }
}

impl Field for u64 {
    const WANTED: &'static str = "a number of 64 bits";

    fn of(value: &DeValue<'_>) -> Option<u64> {
        let number = value.as_integer()?;
        u64::from_str_radix(number.as_str(), number.radix()).ok()
    }
}

impl Field for u32 {
    const WANTED: &'static str = "a number of 32 bits";

    fn of(value: &DeValue<'_>) -> Option<u32> {
        u32::try_from(u64::of(value)?).ok()
    }
}

impl Field for String {
    const WANTED: &'static str = "a text in quotes";

    fn of(value: &DeValue<'_>) -> Option<String> {
        value.as_str().map(str::to_owned)
    }
}

impl Field for Vec<u32> {
    const WANTED: &'static str = "numbers in brackets";

    fn of(value: &DeValue<'_>) -> Option<Vec<u32>> {
        value.as_array()?.iter().map(|number| u32::of(number.get_ref())).collect()
    }
}

impl Field for (u32, u32) {
    const WANTED: &'static str = "two numbers in brackets";

    fn of(value: &DeValue<'_>) -> Option<(u32, u32)> {
        match *Vec::of(value)? {
            [first, second] => Some((first, second)),
            _ => None,
        }
    }
}

/// The line of a place in the text; the first is 1.
pub(super) fn line_of(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1
}
