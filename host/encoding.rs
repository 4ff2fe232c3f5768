//! What ranks tell each other of themselves, as bytes.
//!
//! ```text
//! | version: 1 byte | the value, by postcard |
//! ```
//!
//! [postcard](https://docs.rs/postcard) writes no names: a field of the group's 1024 ranks is parsed a million times while they
//! come together. So ranks must have been built of one version of this library. Those of another are refused by the bootstrap
//! before, or by the byte here.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};

/// To be changed with every change of what ranks tell each other.
const VERSION: u8 = 2;

/// The bytes of a value.
///
/// # Errors
/// [`BootstrapError::Malformed`](ferroccl_bootstrap::BootstrapError::Malformed) for a value that cannot be written.
pub(crate) fn to_bytes<T: Serialize>(value: &T) -> Result<Vec<u8>> {
    postcard::to_extend(value, vec![VERSION]).map_err(|e| Error::malformed(e.to_string()))
}

/// The value of all of `bytes`; else why they are none.
pub(crate) fn from_bytes<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    let (version, value) = bytes.split_first().ok_or("it is empty")?;
    if *version != VERSION {
        return Err(format!("it is of version {version}, this is version {VERSION}"));
    }
    match postcard::take_from_bytes(value) {
        Ok((value, [])) => Ok(value),
        Ok((_, rest)) => Err(format!("{} bytes too many", rest.len())),
        Err(e) => Err(e.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Value = (u32, Option<String>, Vec<(u64, Vec<u8>)>);

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        let value: Value = (7, Some("a host".to_owned()), vec![(1 << 40, vec![0, 255])]);
        let bytes = to_bytes(&value).unwrap();
        assert_eq!(from_bytes::<Value>(&bytes), Ok(value));
        for cut in 0..bytes.len() {
            assert!(from_bytes::<Value>(&bytes[..cut]).is_err(), "{cut} bytes");
        }
        let longer = [&bytes[..], &[0]].concat();
        assert_eq!(from_bytes::<Value>(&longer), Err("1 bytes too many".to_owned()));
        let mut other = bytes.clone();
        other[0] += 1;
        let error = from_bytes::<Value>(&other).unwrap_err();
        assert_eq!(error, "it is of version 3, this is version 2");
        // A length that is not believed before its bytes are there.
        let long = [VERSION, 7, 1, 0xff, 0xff, 0xff, 0xff, 0x0f];
        assert!(from_bytes::<Value>(&long).is_err());
        assert_eq!(from_bytes::<()>(&[]), Err("it is empty".to_owned()));
    }
}
