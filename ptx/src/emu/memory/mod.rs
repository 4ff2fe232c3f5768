//! Memory: what is mapped, plain accesses to it, and the model that is as unhelpful as PTX allows.

pub(crate) mod map;
pub(crate) mod model;
pub(crate) mod raw;
