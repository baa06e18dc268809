//! What the rules need to know of Rust's text: comments, literals, words, items, and what is compiled for tests only.

pub(crate) fn is_import(code: &str, offset: usize) -> bool {
    let statement = code[..offset].rsplit([';', '}']).next().unwrap_or_default().trim_start();
    statement.starts_with("use ") || statement.starts_with("pub use ")
}

pub(crate) fn line_of(text: &str, offset: usize) -> usize {
    text[..offset].matches('\n').count() + 1
}

pub(crate) fn identifier(text: &str) -> &str {
    text.split(|c: char| !(c.is_alphanumeric() || c == '_')).next().unwrap_or_default()
}

/// The path, such as `sync::primitive`, that `text` begins with.
pub(crate) fn path_at(text: &str) -> &str {
    text.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':')).next().unwrap_or_default()
}

/// Where `word` stands in `text`, not as a part of a longer name.
pub(crate) fn words<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let closes = word.ends_with(is_name);
    text.match_indices(word).map(|(offset, _)| offset).filter(move |&offset| {
        let before = !word.starts_with(is_name) || !text[..offset].ends_with(is_name);
        // A prefix such as `env::var` stands for `env::var_os` and `env::vars` too.
        before && (!closes || word.contains("::") || !text[offset + word.len()..].starts_with(is_name))
    })
}

/// The end of the item that starts at `offset`: behind its block, or behind its `;`. `None` where there is no block.
pub(crate) fn item_end(code: &str, offset: usize) -> Option<usize> {
    let mut braces = 0_usize;
    let mut brackets = 0_i64;
    for (index, byte) in code.bytes().enumerate().skip(offset) {
        match byte {
            b'(' | b'[' => brackets += 1,
            b')' | b']' => brackets -= 1,
            b';' if braces == 0 && brackets == 0 => return None,
            b'{' => braces += 1,
            b'}' if braces <= 1 => return Some(index + 1),
            b'}' => braces -= 1,
            _ => {}
        }
    }
    None
}

/// Positions of `#[cfg(test)]` and its kin.
fn test_attributes(code: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    for mark in ["#[cfg(test)]", "#[cfg(all(test"] {
        for (start, _) in code.match_indices(mark) {
            let end = code[start..].find(']').map_or(code.len(), |length| start + length + 1);
            found.push((start, end));
        }
    }
    found
}

/// `code` without its test items, and how many lines these take.
pub(crate) fn blank_tests(code: &str) -> (String, usize) {
    let mut bytes = code.as_bytes().to_vec();
    let mut lines = 0;
    for (start, after) in test_attributes(code) {
        let end = item_end(code, after).or_else(|| code[after..].find(';').map(|length| after + length + 1));
        let item = &mut bytes[start..end.unwrap_or(after)];
        lines += item.iter().filter(|byte| **byte == b'\n').count() + 1;
        item.iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b' ');
    }
    (String::from_utf8(bytes).expect("only whole items of valid text were blanked"), lines)
}

/// The modules that `code` of file `path` declares for tests only, as paths with no ending.
pub(crate) fn test_modules(path: &str, code: &str) -> Vec<String> {
    let own = path.trim_end_matches(".rs");
    let is_crate_root = path == "src/lib.rs" || path.ends_with("/main.rs");
    let folder = if is_crate_root { own.trim_end_matches("/lib").trim_end_matches("/main") } else { own };
    let declared = test_attributes(code).into_iter().filter_map(|(_, after)| {
        let rest = code[after..].trim_start().strip_prefix("mod ")?;
        let name = identifier(rest);
        rest[name.len()..].trim_start().starts_with(';').then(|| format!("{folder}/{name}"))
    });
    declared.collect()
}

/// `text` with comments, strings and characters turned into spaces; lines and offsets stay.
pub(crate) fn blank_comments_and_literals(text: &str) -> String {
    let mut bytes = text.as_bytes().to_vec();
    let mut index = 0;
    while index < bytes.len() {
        let end = match bytes[index] {
            b'/' if bytes[index..].starts_with(b"//") => find(&bytes, index, b"\n"),
            b'/' if bytes[index..].starts_with(b"/*") => block_comment_end(&bytes, index),
            b'"' => string_end(&bytes, index),
            b'r' if index == 0 || !is_name_byte(bytes[index - 1]) || bytes[index - 1] == b'b' => {
                raw_string_end(&bytes, index)
            }
            b'\'' => character_end(&bytes, index),
            _ => index,
        };
        for byte in &mut bytes[index..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        index = end.max(index + 1);
    }
    // Bytes of longer letters outside comments and literals do not occur in our sources; keep the text valid all the same.
    bytes.iter_mut().filter(|byte| !byte.is_ascii()).for_each(|byte| *byte = b'_');
    String::from_utf8(bytes).expect("every byte is ASCII")
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

fn find(bytes: &[u8], from: usize, mark: &[u8]) -> usize {
    bytes[from..].windows(mark.len()).position(|window| window == mark).map_or(bytes.len(), |length| from + length)
}

fn block_comment_end(bytes: &[u8], start: usize) -> usize {
    let mut depth = 0;
    let mut index = start;
    while index < bytes.len() {
        match bytes.get(index..index + 2) {
            Some(b"/*") => (depth, index) = (depth + 1, index + 2),
            Some(b"*/") => (depth, index) = (depth - 1, index + 2),
            _ => index += 1,
        }
        if depth == 0 {
            return index;
        }
    }
    bytes.len()
}

fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut index = start + 1;
    while index < bytes.len() && bytes[index] != b'"' {
        index += if bytes[index] == b'\\' { 2 } else { 1 };
    }
    bytes.len().min(index + 1)
}

/// `start` itself where no raw string starts there.
fn raw_string_end(bytes: &[u8], start: usize) -> usize {
    let hashes = bytes[start + 1..].iter().take_while(|byte| **byte == b'#').count();
    if bytes.get(start + 1 + hashes) != Some(&b'"') {
        return start;
    }
    let close = [b"\"".as_slice(), &b"#".repeat(hashes)].concat();
    bytes.len().min(find(bytes, start + 2 + hashes, &close) + close.len())
}

/// `start` itself for a lifetime.
fn character_end(bytes: &[u8], start: usize) -> usize {
    match bytes.get(start + 1) {
        Some(b'\\') => bytes.len().min(find(bytes, start + 3, b"'") + 1),
        Some(_) if bytes.get(start + 2) == Some(&b'\'') => start + 3,
        Some(byte) if !byte.is_ascii() => bytes.len().min(find(bytes, start + 2, b"'") + 1),
        _ => start,
    }
}
