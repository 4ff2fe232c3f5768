//! Plugins for NCCL's net ABI, by one of our own (`tests/plugin/net.c`) that is compiled here for each version.

mod loading;
mod logs;
mod messages;
mod support;
mod wrong;
