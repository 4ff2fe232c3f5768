//! From elements to text, as NCCL writes it: two spaces a level, one element a line.

use quick_xml::escape::escape;

use super::Element;

impl Element {
    /// The element and all in it as text, which [`parse`](super::parse) reads back as the same.
    #[must_use]
    pub fn to_xml(&self) -> String {
        let mut text = String::new();
        // What is still to be written, the next last: an element, or the end of one.
        let mut rest = vec![(0, self, false)];
        while let Some((level, element, end)) = rest.pop() {
            text.push_str(&"  ".repeat(level));
            if end {
                text.push_str(&format!("</{}>\n", element.name));
                continue;
            }
            text.push_str(&format!("<{}", element.name));
            for attribute in &element.attributes {
                text.push_str(&format!(" {}=\"{}\"", attribute.name, escaped(&attribute.value)));
            }
            if element.children.is_empty() {
                text.push_str("/>\n");
                continue;
            }
            text.push_str(">\n");
            rest.push((level, element, true));
            rest.extend(element.children.iter().rev().map(|child| (level + 1, child, false)));
        }
        text
    }
}

/// A value between quotes. Line ends and tabs would be read back as spaces.
fn escaped(value: &str) -> String {
    escape(value).replace('\n', "&#10;").replace('\r', "&#13;").replace('\t', "&#9;")
}
