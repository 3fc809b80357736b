//! What is written down of a switch that is about to be replaced, in a folder that goes with a
//! reboot.

use anyhow::{Context, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// A folder for one thing, and files that belong to it.
pub struct Folder(pub &'static str);

impl Folder {
    /// Its path.
    pub fn path(&self) -> &Path {
        Path::new(self.0)
    }

    fn file(&self) -> PathBuf {
        self.path().join("record.json")
    }

    /// Makes it, empty, for root only.
    pub fn make(&self) -> Result<()> {
        self.remove();
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(self.path());
        made.context(self.0)
    }

    /// Writes the thing down, in place of what was there.
    pub fn store(&self, what: &impl Serialize) -> Result<()> {
        let part = self.path().join("part");
        fs::write(&part, serde_json::to_vec(what)?).context(self.0)?;
        fs::rename(part, self.file()).context(self.0)
    }

    /// True if the record is there.
    pub fn holds(&self) -> bool {
        self.file().exists()
    }

    /// The thing, if it is there.
    pub fn load<T: DeserializeOwned>(&self) -> Result<Option<T>> {
        match fs::read(self.file()) {
            Ok(text) => Ok(Some(serde_json::from_slice(&text).context(self.0)?)),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e).context(self.0),
        }
    }

    /// It is not needed any more.
    pub fn remove(&self) {
        let _ = fs::remove_file(self.file());
        let _ = fs::remove_dir_all(self.path());
    }
}
