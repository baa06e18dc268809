//! PTX text as words, numbers and signs, each with its line.

use super::PtxError;

/// A piece of PTX text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Token<'a> {
    /// A name, directive, register or opcode with its modifiers: `%tid.x`, `.reg`, `ld.global.L2::128B.u32`.
    Word(&'a str),
    /// A number.
    Number(Number),
    /// A string, without its quotes.
    Text(&'a str),
    /// Any other character.
    Sign(char),
}

/// A number as the text writes it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Number {
    /// A whole number, negative ones in two's complement.
    Integer(u64),
    /// `0f` and eight digits: the bits of a single.
    Single(u32),
    /// `0d` and sixteen digits, or a decimal fraction: the bits of a double.
    Double(u64),
}

/// A token and the line that it is on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Placed<'a> {
    pub(super) token: Token<'a>,
    pub(super) line: u32,
}

/// Splits `text`; comments are left out.
pub(super) fn tokens(text: &str) -> Result<Vec<Placed<'_>>, PtxError> {
    let mut reader = Reader { text, at: 0, line: 1 };
    let mut found = Vec::new();
    loop {
        reader.skip_space()?;
        let line = reader.line;
        let Some(token) = reader.token()? else { return Ok(found) };
        found.push(Placed { token, line });
    }
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    line: u32,
}

impl<'a> Reader<'a> {
    fn byte(&self, ahead: usize) -> u8 {
        self.text.as_bytes().get(self.at + ahead).copied().unwrap_or(0)
    }

    fn error(&self, what: impl Into<String>) -> PtxError {
        PtxError { line: self.line, what: what.into() }
    }

    fn skip_space(&mut self) -> Result<(), PtxError> {
        loop {
            match (self.byte(0), self.byte(1)) {
                (b'\n', _) => {
                    self.line += 1;
                    self.at += 1;
                }
                (b' ' | b'\t' | b'\r', _) => self.at += 1,
                (b'/', b'/') => self.at += self.text[self.at..].find('\n').unwrap_or(self.text.len() - self.at),
                (b'/', b'*') => {
                    let Some(length) = self.text[self.at..].find("*/") else {
                        return Err(self.error("a comment does not end"));
                    };
                    let comment = &self.text.as_bytes()[self.at..self.at + length];
                    let lines = comment.iter().filter(|byte| **byte == b'\n').count();
                    self.line += u32::try_from(lines).unwrap_or(u32::MAX);
                    self.at += length + 2;
                }
                // The driver takes texts with and without a zero at their end.
                (0, _) if self.at < self.text.len() => self.at += 1,
                _ => return Ok(()),
            }
        }
    }

    fn token(&mut self) -> Result<Option<Token<'a>>, PtxError> {
        let first = self.byte(0);
        let begin = self.at;
        match first {
            0 => Ok(None),
            b'"' => {
                let Some(length) = self.text[begin + 1..].find('"') else {
                    return Err(self.error("a string does not end"));
                };
                self.at = begin + length + 2;
                Ok(Some(Token::Text(&self.text[begin + 1..=begin + length])))
            }
            b'0'..=b'9' => self.number().map(|number| Some(Token::Number(number))),
            _ if is_word(first) => {
                self.at += 1;
                while is_word(self.byte(0)) || (self.byte(0) == b':' && self.byte(1) == b':') {
                    // NVIDIA's headers write `.reg.b16` without a space: two directives.
                    if first == b'.' && self.byte(0) == b'.' {
                        break;
                    }
                    self.at += if self.byte(0) == b':' { 2 } else { 1 };
                }
                Ok(Some(Token::Word(&self.text[begin..self.at])))
            }
            _ => {
                let sign = self.text[begin..].chars().next().unwrap_or('\0');
                self.at += sign.len_utf8();
                Ok(Some(Token::Sign(sign)))
            }
        }
    }

    fn number(&mut self) -> Result<Number, PtxError> {
        let begin = self.at;
        while self.byte(0).is_ascii_alphanumeric() || (self.byte(0) == b'.' && self.byte(1).is_ascii_digit()) {
            self.at += 1;
        }
        let written = &self.text[begin..self.at];
        let bad = |_| self.error(format!("`{written}` is no number"));
        if let Some(digits) = written.strip_prefix("0f").or(written.strip_prefix("0F")) {
            return u32::from_str_radix(digits, 16).map(Number::Single).map_err(bad);
        }
        if let Some(digits) = written.strip_prefix("0d").or(written.strip_prefix("0D")) {
            return u64::from_str_radix(digits, 16).map(Number::Double).map_err(bad);
        }
        if written.contains('.') {
            return match written.parse::<f64>() {
                Ok(value) => Ok(Number::Double(value.to_bits())),
                Err(_) => Err(self.error(format!("`{written}` is no number"))),
            };
        }
        let plain = written.trim_end_matches(['U', 'u']);
        let value = if let Some(digits) = plain.strip_prefix("0x").or(plain.strip_prefix("0X")) {
            u64::from_str_radix(digits, 16)
        } else if let Some(digits) = plain.strip_prefix("0b").or(plain.strip_prefix("0B")) {
            u64::from_str_radix(digits, 2)
        } else if plain.len() > 1 && plain.starts_with('0') {
            u64::from_str_radix(plain, 8)
        } else {
            plain.parse()
        };
        value.map(Number::Integer).map_err(bad)
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'%' | b'.')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Vec<Token<'_>> {
        tokens(text).expect("good text").into_iter().map(|placed| placed.token).collect()
    }

    #[test]
    fn words_keep_their_modifiers_and_labels_lose_their_colon() {
        assert_eq!(
            list("$L__BB0_1: ld.global.L2::128B.u32 %r1,[%rd2+4];"),
            [
                Token::Word("$L__BB0_1"),
                Token::Sign(':'),
                Token::Word("ld.global.L2::128B.u32"),
                Token::Word("%r1"),
                Token::Sign(','),
                Token::Sign('['),
                Token::Word("%rd2"),
                Token::Sign('+'),
                Token::Number(Number::Integer(4)),
                Token::Sign(']'),
                Token::Sign(';'),
            ]
        );
    }

    #[test]
    fn numbers_of_all_forms() {
        let numbers =
            ["12", "0x3f80U", "017", "0b101", "0f3F800000", "0d3FF0000000000000", "1.5"].map(|text| list(text)[0]);
        assert_eq!(
            numbers,
            [
                Token::Number(Number::Integer(12)),
                Token::Number(Number::Integer(0x3f80)),
                Token::Number(Number::Integer(15)),
                Token::Number(Number::Integer(5)),
                Token::Number(Number::Single(0x3f80_0000)),
                Token::Number(Number::Double(1f64.to_bits())),
                Token::Number(Number::Double(1.5f64.to_bits())),
            ]
        );
    }

    #[test]
    fn directives_may_stand_together() {
        assert_eq!(
            list("{.reg.b16 hl;"),
            [Token::Sign('{'), Token::Word(".reg"), Token::Word(".b16"), Token::Word("hl"), Token::Sign(';'),]
        );
    }

    #[test]
    fn comments_count_lines() {
        let placed = tokens("/* a\nb */ ret // c\n;\0").expect("good text");
        assert_eq!(placed.iter().map(|placed| placed.line).collect::<Vec<_>>(), [2, 3]);
        assert!(tokens("/* a").is_err());
    }
}
