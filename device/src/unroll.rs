//! Loops over constants: an array that is indexed by a loop's variable is in memory unless the loop is unrolled, which the compiler
//! does not promise.

/// The body for `0..n`, up to 4, each time with a constant.
macro_rules! unroll_4 {
    ($n:expr, $i:ident => $body:expr) => {
        unroll_4!(@ $n, $i => $body; 0 1 2 3)
    };
    (@ $n:expr, $i:ident => $body:expr; $($k:literal)*) => {
        'all: {
            $(
                if $k >= $n {
                    break 'all;
                }
                let $i = $k;
                $body;
            )*
        }
    };
}

/// The body for `0..n`, up to 8, each time with a constant.
macro_rules! unroll_8 {
    ($n:expr, $i:ident => $body:expr) => {
        unroll_4!(@ $n, $i => $body; 0 1 2 3 4 5 6 7)
    };
}
