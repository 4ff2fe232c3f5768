//! From text to elements, within bounds.
//!
//! The tree is built with a stack of open elements, never by recursion: how deep a file is nested decides about an
//! error and nothing else. The bounds are checked before what they bound is stored.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use quick_xml::XmlVersion;
use quick_xml::events::{BytesStart, Event};
use quick_xml::reader::Reader;

use super::{Attribute, Element, XmlError};

/// Bytes of a file at most. A host of 8 GPUs takes 10 KB, its channels as much.
const MOST_BYTES: u64 = 64 << 20;

/// Elements in one another at most. A PCI hierarchy has up to 8 levels of switches, the rest of a file 4.
pub(crate) const MOST_DEPTH: usize = 32;

/// Elements of a file at most: NCCL's limit for graph files (`NCCL_GRAPH_XML_MAX_NODES`).
const MOST_ELEMENTS: usize = 65_536;

/// Attributes of an element at most. NCCL's own have up to 14.
const MOST_ATTRIBUTES: usize = 64;

/// Reads a file and parses it.
///
/// # Errors
/// What the operating system says, more than 64 MiB, bytes that are not UTF-8, and all of [`parse`].
pub fn read(path: &Path) -> Result<Element, XmlError> {
    let file = path.display().to_string();
    let whole = |reason: String| XmlError {
        file: file.as_str().into(),
        line: None,
        element: None,
        attribute: None,
        reason: reason.into(),
    };
    let mut bytes = Vec::new();
    let source = File::open(path).map_err(|e| whole(e.to_string()))?;
    // One byte more than allowed tells a file of just that size from a longer one, which is not read on.
    source.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(|e| whole(e.to_string()))?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(whole(too_long()));
    }
    let text = String::from_utf8(bytes).map_err(|e| {
        let good = e.utf8_error().valid_up_to();
        let newlines = e.as_bytes()[..good].iter().filter(|byte| **byte == b'\n').count();
        XmlError { line: Some(newlines as u32 + 1), ..whole("not UTF-8".to_owned()) }
    })?;
    parse(&text, &file)
}

fn too_long() -> String {
    format!("longer than {} MiB", MOST_BYTES >> 20)
}

/// Parses the text of a file; `file` is its name in errors.
///
/// Comments, processing instructions and an XML declaration are passed over.
///
/// # Errors
/// What is not well-formed, text between elements, document types and entities, and what is past the bounds:
/// 64 MiB, 32 levels, 65,536 elements, 64 attributes an element.
pub fn parse(text: &str, file: &str) -> Result<Element, XmlError> {
    // Places are counted from behind a byte order mark.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    Parser { text, file, at: 0, line: 1, open: Vec::new(), root: None, elements: 0 }.parse()
}

/// Whether an element or an attribute may be called that (XML 1.0, section 2.3, where letters are Unicode's).
fn is_name(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|first| first.is_alphabetic() || matches!(first, '_' | ':'))
        && chars.all(|c| c.is_alphanumeric() || matches!(c, '_' | ':' | '-' | '.'))
}

struct Parser<'a> {
    text: &'a str,
    file: &'a str,
    /// How far lines are counted, in bytes, and the line there.
    at: usize,
    line: u32,
    /// The elements that have begun and not ended, outermost first.
    open: Vec<Element>,
    root: Option<Element>,
    elements: usize,
}

impl Parser<'_> {
    fn parse(mut self) -> Result<Element, XmlError> {
        if self.text.len() as u64 > MOST_BYTES {
            return Err(XmlError { line: None, ..self.error(too_long()) });
        }
        let mut reader = Reader::from_str(self.text);
        loop {
            self.go_to(reader.buffer_position());
            let event = match reader.read_event() {
                Ok(event) => event,
                Err(e) => {
                    self.go_to(reader.error_position());
                    return Err(self.error(e.to_string()));
                }
            };
            match event {
                Event::Start(start) => {
                    let element = self.element(&start)?;
                    self.open.push(element);
                }
                Event::Empty(start) => {
                    let element = self.element(&start)?;
                    self.close(element)?;
                }
                Event::End(_) => match self.open.pop() {
                    Some(element) => self.close(element)?,
                    None => return Err(self.error("an element ends that has not begun")),
                },
                Event::Text(text) => {
                    if let Some(place) = text.find(|c: char| !c.is_whitespace()) {
                        self.go_to((self.at + place) as u64);
                        return Err(self.error("text, where only elements and comments may be"));
                    }
                }
                Event::CData(_) => return Err(self.error("text (CDATA) has no use here")),
                Event::GeneralRef(_) => return Err(self.error("an entity between elements")),
                Event::DocType(_) => return Err(self.error("document types are not read")),
                Event::Comment(_) | Event::Decl(_) | Event::PI(_) => {}
                Event::Eof => break,
            }
        }
        match (self.open.last(), self.root.take()) {
            (Some(open), _) => {
                let line = open.line;
                Err(self.error(format!("the file ends, and this element of line {line} does not")))
            }
            (None, Some(root)) => Ok(root),
            (None, None) => Err(self.error("no element in it")),
        }
    }

    /// Counts lines on to a place, which is never before the last one.
    fn go_to(&mut self, place: u64) {
        let place = (place as usize).min(self.text.len());
        if let Some(passed) = self.text.as_bytes().get(self.at..place) {
            self.line += passed.iter().filter(|byte| **byte == b'\n').count() as u32;
            self.at = place;
        }
    }

    fn error(&self, reason: impl Into<Box<str>>) -> XmlError {
        XmlError {
            file: self.file.into(),
            line: Some(self.line),
            element: self.open.last().map(|element| element.name.as_str().into()),
            attribute: None,
            reason: reason.into(),
        }
    }

    /// What a start tag says.
    fn element(&mut self, start: &BytesStart<'_>) -> Result<Element, XmlError> {
        if self.open.is_empty() && self.root.is_some() {
            return Err(self.error("a second element after the first has ended"));
        }
        if self.open.len() == MOST_DEPTH {
            return Err(self.error(format!("more than {MOST_DEPTH} elements in one another")));
        }
        self.elements += 1;
        if self.elements > MOST_ELEMENTS {
            return Err(self.error(format!("more than {MOST_ELEMENTS} elements")));
        }
        let name = start.name();
        if !is_name(name.as_ref()) {
            return Err(self.error(format!("\"{}\" is no name", name.as_ref().escape_debug())));
        }
        let mut element = Element::new(name.as_ref());
        element.line = self.line;
        // That a name is there once is checked below, with an error that says which.
        for attribute in start.attributes().with_checks(false) {
            let broken = |this: &Self, reason: String| XmlError {
                element: Some(element.name.as_str().into()),
                ..this.error(reason)
            };
            let attribute = attribute.map_err(|e| broken(self, e.to_string()))?;
            if element.attributes.len() == MOST_ATTRIBUTES {
                return Err(broken(self, format!("more than {MOST_ATTRIBUTES} attributes")));
            }
            let name = attribute.key.as_ref();
            // The key is a part of the text, so that its distance from the start is its place.
            let place = (name.as_ptr() as usize).wrapping_sub(self.text.as_ptr() as usize);
            self.go_to(place as u64);
            if !is_name(name) {
                return Err(broken(self, format!("\"{}\" is no name", name.escape_debug())));
            }
            if element.text(name).is_some() {
                let shown = Some((name.into(), Some(attribute.value.into())));
                let reason = "given twice".to_owned();
                return Err(XmlError { attribute: shown, ..broken(self, reason) });
            }
            let value = attribute.normalized_value(XmlVersion::Explicit1_0).map_err(|e| {
                let shown = Some((name.into(), Some(attribute.value.as_ref().into())));
                XmlError { attribute: shown, ..broken(self, e.to_string()) }
            })?;
            element.attributes.push(Attribute {
                name: name.to_owned(),
                value: value.into_owned(),
                line: self.line,
            });
        }
        Ok(element)
    }

    /// Puts an element that has ended where it belongs.
    fn close(&mut self, element: Element) -> Result<(), XmlError> {
        match self.open.last_mut() {
            Some(parent) => parent.children.push(element),
            None => self.root = Some(element),
        }
        Ok(())
    }
}
