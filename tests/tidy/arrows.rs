//! Which file names which: paths resolved through `self`, `super`, child modules and re-exports, down to the file that
//! defines what is meant.

use std::collections::BTreeMap;

use super::text::identifier;

/// The files of a tree as modules.
pub(crate) struct House<'a> {
    /// Paths below `src`, and code without comments, literals and tests.
    files: Vec<(&'a str, &'a str)>,
    /// Files by the paths of their modules; the crate's root is the empty one.
    modules: BTreeMap<String, usize>,
    /// What each file imports and exports.
    uses: Vec<Vec<Use>>,
}

/// One name of a `use` statement.
struct Use {
    /// Absolute, such as `sync::primitive::Arc`.
    path: String,
    /// What the name is in this file; `*` for all names of a module.
    name: String,
    exported: bool,
    /// Where the statement stands.
    statement: (usize, usize),
}

/// Re-exports of re-exports that are followed.
const MOST_HOPS: usize = 16;

impl<'a> House<'a> {
    pub(crate) fn of(files: Vec<(&'a str, &'a str)>) -> House<'a> {
        let modules: BTreeMap<String, usize> =
            files.iter().enumerate().map(|(file, (path, _))| (module_path(path), file)).collect();
        let mut house = House { files, modules, uses: Vec::new() };
        house.uses = house.files.iter().map(|(path, code)| house.uses_of(&module_path(path), code)).collect();
        house
    }

    /// The files that `file` names, each with the first place where it does.
    pub(crate) fn named_by(&self, path: &str) -> BTreeMap<&'a str, usize> {
        let module = module_path(path);
        let Some(&file) = self.modules.get(&module) else { return BTreeMap::new() };
        let code = self.files[file].1;
        let mut named: BTreeMap<&str, usize> = BTreeMap::new();
        let mut note = |target: Option<usize>, offset: usize| {
            if let Some(target) = target.filter(|target| *target != file) {
                named.entry(self.files[target].0).and_modify(|first| *first = offset.min(*first)).or_insert(offset);
            }
        };
        for used in &self.uses[file] {
            // What is only handed on is named by whoever takes it; a module by whoever looks into it.
            let is_module = self.modules.contains_key(&used.path);
            let is_named_here = !used.exported || self.stands_in(file, &used.name);
            if used.name == "*" && !used.exported || used.name != "*" && !is_module && is_named_here {
                note(self.home(&used.path, 0), used.statement.0);
            }
        }
        for (offset, path) in paths(code) {
            let is_import = self.uses[file].iter().any(|used| (used.statement.0..used.statement.1).contains(&offset));
            if !is_import && let Some(absolute) = self.absolute(file, &module, path) {
                note(self.home(&absolute, 0), offset);
            }
        }
        named
    }

    /// Whether `name` stands in the file beside its imports.
    fn stands_in(&self, file: usize, name: &str) -> bool {
        let code = self.files[file].1;
        super::text::words(code, name).any(|offset| {
            identifier(&code[offset..]) == name
                && !self.uses[file].iter().any(|used| (used.statement.0..used.statement.1).contains(&offset))
        })
    }

    /// The file that defines what is at `path`.
    fn home(&self, path: &str, hops: usize) -> Option<usize> {
        let mut module = path;
        let mut rest = "";
        loop {
            if let Some(&file) = self.modules.get(module) {
                return if rest.is_empty() || hops == MOST_HOPS { Some(file) } else { self.follow(file, rest, hops) };
            }
            let end = module.rfind("::").unwrap_or(0);
            if module.is_empty() {
                return None;
            }
            rest = path[end..].trim_start_matches("::");
            module = &path[..end];
        }
    }

    /// The file that defines `path`, as `file` knows it.
    fn follow(&self, file: usize, path: &str, hops: usize) -> Option<usize> {
        let name = identifier(path);
        if let Some(used) = self.uses[file].iter().find(|used| used.name == name) {
            return self.home(&format!("{}{}", used.path, &path[name.len()..]), hops + 1);
        }
        let globs = self.uses[file].iter().filter(|used| used.name == "*");
        let found = globs.filter_map(|used| self.home(&format!("{}::{path}", used.path), hops + 1));
        found.into_iter().find(|found| defines(self.files[*found].1, name)).or(Some(file))
    }

    /// What `path` means in `module`; `None` for what is of no module of the tree.
    fn absolute(&self, file: usize, module: &str, path: &str) -> Option<String> {
        let first = identifier(path);
        let rest = path[first.len()..].trim_start_matches("::");
        match first {
            "crate" => Some(rest.to_owned()),
            "self" => Some(join(module, rest)),
            "super" => {
                let parent = module.rfind("::").map_or("", |end| &module[..end]);
                match identifier(rest) {
                    "super" => self.absolute(file, parent, rest),
                    _ => Some(join(parent, rest)),
                }
            }
            _ if self.modules.contains_key(&join(module, first)) => Some(join(module, path)),
            _ => {
                let used = self.uses.get(file)?.iter().find(|used| used.name == first)?;
                Some(join(&used.path, rest))
            }
        }
    }

    fn uses_of(&self, module: &str, code: &str) -> Vec<Use> {
        let mut found = Vec::new();
        for start in super::text::words(code, "use ") {
            let before = code[..start].rsplit([';', '}', '{', '\n']).next().unwrap_or_default().trim();
            let exported = before.starts_with("pub");
            let Some(length) = code[start..].find(';').filter(|_| before.is_empty() || exported) else { continue };
            let statement = (start, start + length);
            let mut leaves = Vec::new();
            leaves_of(&code[start + "use ".len()..start + length], "", &mut leaves);
            for (path, name) in leaves {
                let first = identifier(&path);
                let is_child = self.modules.contains_key(&join(module, first));
                if (matches!(first, "crate" | "self" | "super") || is_child)
                    && let Some(path) = self.absolute(usize::MAX, module, &path)
                {
                    found.push(Use { path, name, exported, statement });
                }
            }
        }
        found
    }

    /// Each file with its code.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&'a str, &'a str)> + '_ {
        self.files.iter().copied()
    }
}

fn join(module: &str, rest: &str) -> String {
    match (module, rest) {
        ("", path) | (path, "") => path.to_owned(),
        _ => format!("{module}::{rest}"),
    }
}

/// `comm::window` for `src/comm/window.rs`.
fn module_path(path: &str) -> String {
    let inside = path.trim_start_matches("src/").trim_end_matches(".rs").trim_end_matches("/main");
    if inside == "lib" { String::new() } else { inside.replace('/', "::") }
}

/// The paths that a tree of a `use` statement names, each with its name in the file.
fn leaves_of(tree: &str, before: &str, found: &mut Vec<(String, String)>) {
    let tree = tree.trim();
    let Some(open) = tree.find('{') else {
        let (path, alias) = tree.split_once(" as ").unwrap_or((tree, ""));
        let path = format!("{before}{}", path.trim());
        let path = path.strip_suffix("::self").unwrap_or(&path).to_owned();
        let name = if alias.is_empty() { path.rsplit("::").next().unwrap_or_default() } else { alias.trim() };
        if !path.is_empty() {
            found.push((path.trim_end_matches("::*").to_owned(), name.to_owned()));
        }
        return;
    };
    let before = format!("{before}{}", tree[..open].trim());
    let (mut depth, mut start) = (0, open + 1);
    for (offset, letter) in tree.char_indices().skip(open) {
        match letter {
            '{' => depth += 1,
            '}' if depth > 1 => depth -= 1,
            ',' if depth > 1 => {}
            '}' | ',' => {
                leaves_of(&tree[start..offset], &before, found);
                start = offset + 1;
            }
            _ => {}
        }
    }
}

/// The paths of two names and more in `code`.
fn paths(code: &str) -> Vec<(usize, &str)> {
    let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let mut found = Vec::new();
    let mut end = 0;
    for (offset, _) in code.match_indices("::") {
        if offset < end {
            continue;
        }
        let start = code[..offset].rfind(|c: char| !is_path(c)).map_or(0, |before| before + 1);
        end = code[offset..].find(|c: char| !is_path(c)).map_or(code.len(), |length| offset + length);
        let path = code[start..end].trim_start_matches(':').trim_end_matches(':');
        // Not `<T as Trait>::name`, nor what a single colon begins, nor who may see an item.
        let is_visibility = code[..start].ends_with("pub(in ");
        if offset > start && path.contains("::") && !code[start..offset].contains(':') && !is_visibility {
            found.push((start, path));
        }
    }
    found
}

/// Whether `code` has an item of this name.
fn defines(code: &str, name: &str) -> bool {
    ["fn ", "struct ", "enum ", "union ", "trait ", "type ", "const ", "static ", "mod ", "macro_rules! "].iter().any(
        |kind| {
            super::text::words(code, kind).any(|offset| identifier(code[offset + kind.len()..].trim_start()) == name)
        },
    )
}
