//! Output of many ranks as one: whole lines, each with its rank in front.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::process::Child;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

/// The threads that pass on what ranks write.
#[derive(Debug)]
pub(super) struct Tagged {
    /// A clone is dropped at the end of each stream.
    open: Sender<()>,
    ended: Receiver<()>,
}

impl Default for Tagged {
    fn default() -> Self {
        let (open, ended) = mpsc::channel();
        Tagged { open, ended }
    }
}

impl Tagged {
    /// Passes on what this rank writes, from now on.
    pub(super) fn add(&mut self, rank: u32, child: &mut Child) -> io::Result<()> {
        if let Some(stdout) = child.stdout.take() {
            self.pass_on(rank, stdout, io::stdout())?;
        }
        if let Some(stderr) = child.stderr.take() {
            self.pass_on(rank, stderr, io::stderr())?;
        }
        Ok(())
    }

    fn pass_on(
        &self,
        rank: u32,
        from: impl Read + Send + 'static,
        to: impl Write + Send + 'static,
    ) -> io::Result<()> {
        let open = self.open.clone();
        let work = move || {
            let _open = open;
            copy_tagged(rank, BufReader::new(from), to)
        };
        thread::Builder::new().name(format!("output of {rank}")).spawn(work)?;
        Ok(())
    }

    /// Waits until everything is written that the ranks wrote, but not for a daemon that keeps their
    /// output open.
    pub(super) fn drain(self) {
        drop(self.open);
        let _ = self.ended.recv_timeout(Duration::from_secs(1)); // disconnected: all are done
    }
}

/// Copies line by line; each is written at once, so that lines of several ranks do not mix.
fn copy_tagged(rank: u32, mut from: impl BufRead, mut to: impl Write) -> io::Result<()> {
    let tag = format!("[{rank}] ");
    let mut line = Vec::new();
    loop {
        line.clear();
        line.extend_from_slice(tag.as_bytes());
        if from.read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        if line.last() != Some(&b'\n') {
            line.push(b'\n');
        }
        to.write_all(&line)?;
        to.flush()?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_has_its_tag() {
        let mut out = Vec::new();
        copy_tagged(7, &b"one\n\ntwo \xff\nthree"[..], &mut out).unwrap();
        assert_eq!(out, b"[7] one\n[7] \n[7] two \xff\n[7] three\n");
        let mut out = Vec::new();
        copy_tagged(7, &b""[..], &mut out).unwrap();
        assert!(out.is_empty());
    }
}
