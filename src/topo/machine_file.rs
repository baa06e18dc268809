//! Files that describe a machine, whatever their format: NCCL's and RCCL's, or hwloc's.

use std::borrow::Cow;

use crate::error::{Error, Result, shown};
use crate::topo::description::Machine;
use crate::topo::hwloc;
use crate::topo::xml::{self, XmlSource};

/// Reads a file; `name` stands in errors. The notes say what was assumed.
///
/// # Errors
/// [`crate::error::Kind::InvalidArgument`] with line and column: see [`xml::parse`] and `hwloc`.
pub fn parse(name: &str, text: &str) -> Result<(Machine, Vec<String>)> {
    let text = without_doctype(name, text)?;
    let document = XmlSource::document(name, &text)?;
    let source = XmlSource { name, document: &document };
    match document.root_element().tag_name().name() {
        "topology" => hwloc::parse(source),
        "system" => xml::read(source),
        "graphs" => {
            let what = "<graphs>: this is a graph file (NCCL_GRAPH_FILE, --graph), not a topology file";
            Err(source.wrong(document.root_element(), what))
        }
        other => {
            let what = format!(
                "<{}> where a topology file has <system> (NCCL's, RCCL's) or <topology> (hwloc's, lstopo --of xml)",
                shown(other)
            );
            Err(source.wrong(document.root_element(), &what))
        }
    }
}

/// The text with blanks in place of the document type that hwloc writes, so that all places stay. A type with
/// declarations of its own stays, and is refused: it could declare entities.
///
/// # Errors
/// Where it is not closed.
fn without_doctype<'t>(name: &str, text: &'t str) -> Result<Cow<'t, str>> {
    let mut rest = text.trim_start_matches('\u{feff}').trim_start();
    // What may stand before it: the declaration, comments.
    loop {
        let end = match rest {
            _ if rest.starts_with("<?") => rest.find("?>").map(|at| at + 2),
            _ if rest.starts_with("<!--") => rest.find("-->").map(|at| at + 3),
            _ => break,
        };
        let Some(end) = end else { return Ok(Cow::Borrowed(text)) };
        rest = rest[end..].trim_start();
    }
    if !rest.starts_with("<!DOCTYPE") {
        return Ok(Cow::Borrowed(text));
    }
    let start = text.len() - rest.len();
    let Some(length) = rest.find('>').map(|at| at + 1) else {
        return Err(Error::invalid_argument(format!("{name}: its document type is not closed")));
    };
    if rest[..length].contains('[') {
        return Ok(Cow::Borrowed(text));
    }
    let blank: String = rest[..length].chars().map(|letter| if letter == '\n' { '\n' } else { ' ' }).collect();
    Ok(Cow::Owned(format!("{}{blank}{}", &text[..start], &text[start + length..])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_type_is_cut_and_places_stay() {
        let head = "<?xml version=\"1.0\"?>\n<!-- a > b -->\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n";
        let error = parse("f", &format!("{head}<other/>")).unwrap_err();
        assert!(error.message().starts_with("f:4:1: <other> where a topology file has <system>"), "{error}");
        let (machine, _) = parse("f", &format!("{head}<system><cpu numaid=\"3\"/></system>")).unwrap();
        assert_eq!(machine.cpus[0].numa, 3);
        for refused in ["<!DOCTYPE t [<!ENTITY a \"aaaa\">]><topology/>", "<!DOCTYPE topology", "<?xml"] {
            assert!(parse("f", refused).is_err(), "{refused}");
        }
        assert!(parse("f", "<graphs version=\"1\"/>").unwrap_err().message().contains("this is a graph file"));
    }
}
