//! An element and the file it is of: attributes as values, and errors that say where.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use super::{Element, XmlError};

/// An element of a file, for reading.
///
/// An attribute that is empty counts as missing, as `link_speed=""` does in NCCL's files.
///
/// ```
/// use ferroccl_topology::xml;
///
/// let root = xml::parse("<net dev=\"0\" speed=\"fast\"/>", "topo.xml")?;
/// let net = root.in_file("topo.xml");
/// assert_eq!(net.number("dev", 0..=9)?, Some(0));
/// assert_eq!(net.number::<u32>("port", 0..=9)?, None);
/// let error = net.number("speed", 1..=100).unwrap_err();
/// let text = "topo.xml:1: <net>: attribute speed=\"fast\": not a whole number from 1 to 100";
/// assert_eq!(error.to_string(), text);
/// # Ok::<(), xml::XmlError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Located<'a> {
    element: &'a Element,
    file: &'a str,
}

impl Element {
    /// This element for reading: its attributes as numbers, and errors that name the file.
    #[must_use]
    pub fn in_file<'a>(&'a self, file: &'a str) -> Located<'a> {
        Located::new(self, file)
    }
}

impl<'a> Located<'a> {
    pub(super) fn new(element: &'a Element, file: &'a str) -> Located<'a> {
        Located { element, file }
    }

    /// The element itself.
    #[must_use]
    pub fn element(self) -> &'a Element {
        self.element
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'a str {
        &self.element.name
    }

    /// The elements in it, in order.
    pub fn children(self) -> impl Iterator<Item = Located<'a>> {
        self.element.children.iter().map(move |child| Located::new(child, self.file))
    }

    /// An attribute that is there and not empty.
    #[must_use]
    pub fn text(self, name: &str) -> Option<&'a str> {
        self.element.text(name).filter(|value| !value.trim().is_empty())
    }

    /// An attribute that must be there.
    ///
    /// # Errors
    /// It is missing or empty.
    pub fn required(self, name: &str) -> Result<&'a str, XmlError> {
        self.text(name).ok_or_else(|| self.missing(name))
    }

    /// A whole number.
    ///
    /// # Errors
    /// It is none, or outside of `range`.
    pub fn number<T>(self, name: &str, range: RangeInclusive<T>) -> Result<Option<T>, XmlError>
    where
        T: FromStr + PartialOrd + fmt::Display,
    {
        self.within(name, range, "whole number")
    }

    /// A number with or without a fraction.
    ///
    /// # Errors
    /// It is none, not finite, or outside of `range`.
    pub fn decimal(self, name: &str, range: RangeInclusive<f64>) -> Result<Option<f64>, XmlError> {
        self.within(name, range, "number")
    }

    fn within<T>(
        self,
        name: &str,
        range: RangeInclusive<T>,
        what: &str,
    ) -> Result<Option<T>, XmlError>
    where
        T: FromStr + PartialOrd + fmt::Display,
    {
        let Some(text) = self.text(name) else { return Ok(None) };
        // NaN is in no range.
        let value = text.trim().parse().ok().filter(|value| range.contains(value));
        let (low, high) = range.into_inner();
        value
            .map(Some)
            .ok_or_else(|| self.wrong(name, format!("not a {what} from {low} to {high}")))
    }

    /// 0 or 1.
    ///
    /// # Errors
    /// It is something else.
    pub fn flag(self, name: &str) -> Result<Option<bool>, XmlError> {
        match self.text(name).map(str::trim) {
            None => Ok(None),
            Some("0") => Ok(Some(false)),
            Some("1") => Ok(Some(true)),
            Some(_) => Err(self.wrong(name, "neither 0 nor 1")),
        }
    }

    /// A number in hexadecimal, with or without `0x`.
    ///
    /// # Errors
    /// It is none, or more than `most`.
    pub fn hexadecimal(self, name: &str, most: u64) -> Result<Option<u64>, XmlError> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let text = text.trim();
        let digits = text.strip_prefix("0x").or(text.strip_prefix("0X")).unwrap_or(text);
        let plain = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        let value = u64::from_str_radix(digits, 16).ok().filter(|value| plain && *value <= most);
        value.map(Some).ok_or_else(|| {
            self.wrong(name, format!("not a hexadecimal number from 0x0 to {most:#x}"))
        })
    }

    /// Anything that can be read from text.
    ///
    /// # Errors
    /// It cannot; the reason is the type's own.
    pub fn parsed<T>(self, name: &str) -> Result<Option<T>, XmlError>
    where
        T: FromStr<Err: fmt::Display>,
    {
        let Some(text) = self.text(name) else { return Ok(None) };
        text.trim().parse().map(Some).map_err(|e: T::Err| self.wrong(name, e.to_string()))
    }

    /// An error of the element itself.
    #[must_use]
    pub fn error(self, reason: impl Into<Box<str>>) -> XmlError {
        XmlError {
            file: self.file.into(),
            line: (self.element.line > 0).then_some(self.element.line),
            element: Some(self.element.name.as_str().into()),
            attribute: None,
            reason: reason.into(),
        }
    }

    /// An error of the value of an attribute.
    #[must_use]
    pub fn wrong(self, name: &str, reason: impl Into<Box<str>>) -> XmlError {
        let known = self.element.attributes.iter().find(|attribute| attribute.name == name);
        XmlError {
            line: known.map_or(self.element.line, |known| known.line).into(),
            attribute: Some((name.into(), known.map(|known| known.value.as_str().into()))),
            ..self.error(reason)
        }
        .without_line_0()
    }

    /// An error of an attribute that is not there.
    #[must_use]
    pub fn missing(self, name: &str) -> XmlError {
        XmlError { attribute: Some((name.into(), None)), ..self.error("missing") }
    }

    /// Where it is, as errors say it.
    #[must_use]
    pub fn place(self) -> String {
        let mut place = self.error("").to_string();
        place.truncate(place.trim_end_matches([':', ' ']).len());
        place
    }
}

impl XmlError {
    fn without_line_0(mut self) -> XmlError {
        self.line = self.line.filter(|line| *line > 0);
        self
    }
}
