//! The proxy thread and its networks: they come with communicators that span hosts.
