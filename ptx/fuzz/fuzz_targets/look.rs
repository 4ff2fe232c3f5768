//! Any text: see `tests/support/look.rs` for what must hold.
#![no_main]

#[path = "../../tests/support/look.rs"]
mod look;

libfuzzer_sys::fuzz_target!(|source: &str| {
    look::look(source, "the input");
});
