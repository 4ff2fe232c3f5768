//! Elements, and what can be wrong with a file.

use std::fmt;

/// An element, its attributes in order and what it holds.
///
/// ```
/// use ferroccl_topology::xml::{self, Element};
///
/// let made = Element::new("cpu").with("numaid", 0).holding(Element::new("pci").with("busid", "0000:10:00.0"));
/// let text = made.to_xml();
/// assert_eq!(text, "<cpu numaid=\"0\">\n  <pci busid=\"0000:10:00.0\"/>\n</cpu>\n");
/// let read = xml::parse(&text, "made.xml")?;
/// assert_eq!((read.children[0].line, read.children[0].text("busid")), (2, Some("0000:10:00.0")));
/// # Ok::<(), ferroccl_topology::xml::XmlError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Element {
    /// Its name.
    pub name: String,
    /// Its attributes, in order; no two of one name where it was read from a file.
    pub attributes: Vec<Attribute>,
    /// The elements in it, in order.
    pub children: Vec<Element>,
    /// The line it begins in, from 1; 0 for one that was not read from a file.
    pub line: u32,
}

/// An attribute of an element.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attribute {
    /// Its name.
    pub name: String,
    /// Its value, without quotes and escapes.
    pub value: String,
    /// The line it begins in, from 1; 0 for one that was not read from a file.
    pub line: u32,
}

impl Element {
    /// An element without attributes.
    #[must_use]
    pub fn new(name: &str) -> Element {
        Element { name: name.to_owned(), ..Element::default() }
    }

    /// The same with one more attribute, or another value of one it has.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl fmt::Display) -> Element {
        self.set(name, value);
        self
    }

    /// The same with one more element in it, after the others.
    #[must_use]
    pub fn holding(mut self, child: Element) -> Element {
        self.children.push(child);
        self
    }

    /// Gives an attribute a value; one that it does not have comes after the others.
    pub fn set(&mut self, name: &str, value: impl fmt::Display) {
        let value = value.to_string();
        match self.attributes.iter_mut().find(|attribute| attribute.name == name) {
            Some(known) => known.value = value,
            None => self.attributes.push(Attribute { name: name.to_owned(), value, line: 0 }),
        }
    }

    /// The value of an attribute, if it has it.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|a| a.name == name).map(|a| a.value.as_str())
    }

    /// The elements of one name in it.
    pub fn children_named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Element> {
        self.children.iter().filter(move |child| child.name == name)
    }
}

/// What is wrong with an XML file, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct XmlError {
    /// The file's name as it was given.
    pub file: Box<str>,
    /// The line, from 1; `None` where the whole file is meant.
    pub line: Option<u32>,
    /// The element, where it is known.
    pub element: Option<Box<str>>,
    /// The attribute, and its value where it has one.
    pub attribute: Option<(Box<str>, Option<Box<str>>)>,
    /// What is wrong, as a clause.
    pub reason: Box<str>,
}

impl fmt::Display for XmlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        if let Some(element) = &self.element {
            write!(f, ": <{}>", shown(element, MOST_SHOWN))?;
        }
        match &self.attribute {
            Some((name, Some(value))) => {
                write!(
                    f,
                    ": attribute {}=\"{}\"",
                    shown(name, MOST_SHOWN),
                    shown(value, MOST_SHOWN)
                )?;
            }
            Some((name, None)) => write!(f, ": attribute {}", shown(name, MOST_SHOWN))?,
            None => {}
        }
        // Reasons may quote the file, too.
        write!(f, ": {}", shown(&self.reason, 4 * MOST_SHOWN))
    }
}

/// Characters of a name or value in a message.
const MOST_SHOWN: usize = 64;

/// As much of a text from a file as a message can bear, on one line.
fn shown(text: &str, most: usize) -> String {
    let visible = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    let start: String = text.chars().take(most).map(visible).collect();
    if text.chars().nth(most).is_some() { format!("{start}...") } else { start }
}
