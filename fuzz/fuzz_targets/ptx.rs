//! Any text as PTX: see `ptx/tests/support/look.rs` for what must hold.
#![no_main]

#[path = "../../ptx/tests/support/look.rs"]
mod look;

libfuzzer_sys::fuzz_target!(|source: &str| {
    look::look(source, "the input");
});
