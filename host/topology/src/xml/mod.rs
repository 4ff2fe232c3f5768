//! NCCL's XML: elements, attributes and nothing else, each with the line it stands in.
//!
//! Topology and graph files are small trees written by people, clouds and other programs, and they are input like
//! any other: nothing in them is believed. [`parse`] bounds what a file may cost (its size, depth, elements and
//! attributes), refuses what these files have no use for (entities, document types, text), and whoever reads an
//! attribute through [`Located`] gets an error that names file, line, element and attribute:
//!
//! ```text
//!   topo.xml:12: <pci>: attribute link_width="9999": more than 32 lanes
//! ```
//!
//! What an element means is not known here.

mod element;
mod located;
mod reader;
mod writer;

pub use element::{Attribute, Element, XmlError};
pub use located::Located;
pub(super) use reader::MOST_DEPTH;
pub use reader::{parse, read};
