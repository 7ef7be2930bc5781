//! Small files, which share chunks and are compacted when most of them are gone; and conversions of files to another
//! layout while servers fail.

use std::collections::BTreeMap;

use cairn_client::{ClientError, Conversion, ConversionControl, FileWriter, Volume, WriteOptions};
use cairn_types::{ErrorCode, Layout};

use super::{ATTEMPTS, Workload, beside};
use crate::faults::Planned;
use crate::file::{difference, fresh_bytes};

/// Names of small files.
pub(super) const NAMES: usize = 24;
/// Written at a time.
const AT_ONCE: usize = 10;

/// Those that exist, by number.
#[derive(Default)]
pub(super) struct SmallFiles {
    files: BTreeMap<usize, (u64, Vec<u8>)>,
}

impl SmallFiles {
    /// Inode and contents of each.
    pub(super) fn all(&self) -> impl Iterator<Item = (u64, &Vec<u8>)> {
        self.files.values().map(|(inode, bytes)| (*inode, bytes))
    }
}

impl SmallFiles {
    /// Path and contents of each.
    pub(super) fn contents(&self, directories: &[String]) -> Vec<(Vec<u8>, Vec<u8>)> {
        self.files.iter().map(|(number, (_, bytes))| (path(directories, *number), bytes.clone())).collect()
    }
}

fn path(directories: &[String], number: usize) -> Vec<u8> {
    format!("{}/small{number}", directories[number % directories.len()]).into_bytes()
}

/// Writes a file anew; its inode.
pub(super) async fn write_one(
    volume: Volume,
    path: Vec<u8>,
    layout: Layout,
    bytes: Vec<u8>,
) -> Result<u64, ClientError> {
    let options = WriteOptions { mode: 0o644, mtime_ns: 1, layout, exclusive: false, owner: None };
    let mut writer = volume.write(&path, options).await?;
    let mut buffer = FileWriter::buffer();
    buffer.extend_from_slice(&bytes);
    writer.push(buffer.into()).await?;
    writer.finish().await.map(|made| made.inode)
}

impl Workload {
    /// Some files at the same time, in place of others of these names; then some of all are removed.
    pub(super) fn write_small(&mut self, planned: Option<Planned>) -> Result<(), String> {
        self.count("rounds of small files");
        let layout = self.layouts[self.rng.index(2)];
        let mut wanted = BTreeMap::new();
        for _ in 0..1 + self.rng.index(AT_ONCE) {
            let length = 1 + self.rng.index(1 << (6 + self.rng.index(10)));
            wanted.insert(self.rng.index(NAMES), fresh_bytes(&self.rng, length));
        }
        self.write_these(wanted, layout, planned)?;
        self.remove_small()?;
        self.check_small()
    }

    /// All of these at the same time.
    pub(super) fn write_these(
        &mut self,
        mut wanted: BTreeMap<usize, Vec<u8>>,
        layout: Layout,
        mut planned: Option<Planned>,
    ) -> Result<(), String> {
        for attempt in 0..ATTEMPTS {
            let volume = &self.volume;
            let all = async {
                let mut jobs = tokio::task::JoinSet::new();
                for (number, bytes) in wanted.clone() {
                    let one = write_one(volume.clone(), path(&self.directories, number), layout, bytes);
                    jobs.spawn(async move { (number, one.await) });
                }
                jobs.join_all().await
            };
            let mut refused = None;
            for (number, outcome) in beside(&self.cluster, &mut self.chaos, planned.take(), all)? {
                match outcome {
                    Ok(inode) => {
                        let bytes = wanted.remove(&number).expect("it was wanted");
                        self.small.files.insert(number, (inode, bytes));
                    }
                    Err(error) => refused = Some(error),
                }
            }
            match refused {
                None => break,
                Some(error) => self.relieve("small files refused", attempt, &error)?,
            }
        }
        Ok(())
    }

    pub(super) fn remove_small(&mut self) -> Result<(), String> {
        let doomed: Vec<usize> = self.small.files.keys().copied().filter(|_| self.rng.chance(0.3)).collect();
        for number in doomed {
            for attempt in 0..ATTEMPTS {
                match beside(
                    &self.cluster,
                    &mut self.chaos,
                    None,
                    self.volume.unlink(&path(&self.directories, number)),
                )? {
                    Ok(()) => break,
                    Err(error) if attempt > 0 && error.code() == Some(ErrorCode::NotFound) => break,
                    Err(error) => self.relieve("removals refused", attempt, &error)?,
                }
            }
            self.small.files.remove(&number);
        }
        Ok(())
    }

    /// All of them read back as they were written.
    pub(super) fn check_small(&mut self) -> Result<(), String> {
        let numbers: Vec<usize> = self.small.files.keys().copied().collect();
        for number in numbers {
            let bytes = self.read_small(number)?;
            let other = difference(&bytes, &self.small.files[&number].1);
            if let Some(other) = other {
                return Err(format!("small file {number} reads back wrong: {other}"));
            }
            self.count("small files compared");
        }
        Ok(())
    }

    fn read_small(&mut self, number: usize) -> Result<Vec<u8>, String> {
        for attempt in 0..ATTEMPTS {
            let exposed = self.chaos.exposed();
            match self.read_path(&path(&self.directories, number))? {
                Ok(bytes) => return Ok(bytes),
                Err(error) => {
                    self.check_refusal(&format!("small file {number}"), &exposed, &error)?;
                    self.relieve("reads refused", attempt, &error)?;
                }
            }
        }
        Err("the last attempt is an error".into())
    }

    /// The file gets the other layout, its handle being closed meanwhile. Refused, it is as it was.
    pub(super) fn convert(&mut self, i: usize, planned: Option<Planned>) -> Result<(), String> {
        self.close(i, None)?;
        let layout = if self.files[i].layout == self.layouts[0] { self.layouts[1] } else { self.layouts[0] };
        let (inode, path) = (self.files[i].inode, self.files[i].path.clone());
        let control = ConversionControl::default();
        let converted = self.volume.convert(inode, &path, layout, &control);
        match beside(&self.cluster, &mut self.chaos, planned, converted)? {
            Ok(Conversion::Done { .. }) => {
                self.files[i].set_layout(layout);
                self.count("conversions");
            }
            // One that was refused before had been done, or not.
            Ok(_) => self.files[i].set_layout(layout),
            Err(error) => {
                // It may have been done: who reads old maps has to take either for possible.
                self.files[i].set_layout(layout);
                self.relieve("conversions refused", 0, &error)?;
            }
        }
        self.check_file(i)?;
        self.reopen(i)
    }
}
