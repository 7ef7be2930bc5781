//! Writers that can be shut out of a file: nothing of theirs is published once the file's *mark*, an extended
//! attribute, is another one than when they opened it.
//!
//! Whoever shuts them out sets the mark and then raises the version of the contents (`Volume::shut_out`). Each publish
//! names the version that it was made for. **Invariant:** what guarded writers wrote is published for a version only if
//! the mark was seen to be the same *after* that version was known. So a publish that was on its way is done before the
//! version rises, and whoever shut its writer out sees it, or it is refused; and before it is tried for the new
//! version, the mark is looked at. What waits then is dropped: it would be laid over what others wrote since, or come
//! behind it. Guarded contents never go in place, which no version guards.
//!
//! Handles of one process share a file's memory. Each mark that is found begins a *generation* of writers: those of an
//! earlier one may neither write nor have anything waiting.
use super::guard::Guard;
use super::{FileData, State};
use crate::error::{ClientError, Result};
use crate::meta::volume::Volume;
use cairn_types::ErrorCode;
use cairn_wire::meta::PublishRequest;

/// What the mark says. `None` within: there is none.
type Looked = Option<Option<Vec<u8>>>;

impl State {
    /// Writers can be shut out.
    pub(super) fn is_guarded(&self) -> bool {
        self.guard.generation > 0
    }
    /// Nobody is known to have changed the contents since the mark was looked at.
    pub(super) fn may_publish(&self) -> bool {
        !self.is_guarded() || self.guard.seen == self.foreign
    }
    /// Whether a writer of that generation was shut out; 0: one who cannot be.
    pub(super) fn is_shut_out(&self, generation: u64) -> bool {
        generation != 0 && generation != self.guard.generation
    }
    /// Those who wrote until now are shut out by that mark; what of theirs waits is dropped.
    fn shut_out(&mut self, value: Option<Vec<u8>>) {
        self.guard.generation += 1;
        self.guard.value = value;
        self.dirty.truncate(0);
        self.flights.clear();
        self.blocks.clear();
        self.settle();
    }
}

impl Volume {
    /// Sets the mark of a file, and raises the version of its contents, which stay as they are: guarded writers who had
    /// it open are shut out when this returns.
    pub async fn shut_out(&self, inode: u64, shown_as: &[u8], name: &[u8], value: &[u8]) -> Result<()> {
        self.set_xattr(inode, name, value, 0).await?;
        self.publish(inode, shown_as, PublishRequest { keep_mtime: true, ..Default::default() }).await.map(|_| ())
    }
}

impl FileData {
    /// A writer has opened the file who can be shut out by that attribute. His generation. `made`: he made the file a
    /// moment ago, and nobody has been shut out since.
    pub async fn guard(&self, writer: &Volume, name: &[u8], made: bool) -> Result<u64> {
        let _one_after_the_other = self.guarding.lock().await;
        let (known, guarded) = {
            let state = self.state.lock();
            (state.foreign, state.is_guarded())
        };
        // What others did to a file since it was made may have been to shut its writer out.
        let looked = if made && !guarded && known == 0 { Some(None) } else { self.look(writer, name).await? };
        // One who may not read it cannot be shut out.
        let Some(value) = looked else { return Ok(0) };
        Ok(self.with(0, |state| {
            if !state.is_guarded() {
                state.guard = Guard { generation: 1, mark: Some((name.to_vec(), writer.clone())), value, seen: known };
            } else {
                if state.guard.value != value {
                    state.shut_out(value);
                }
                state.guard.saw(known);
            }
            state.guard.generation
        }))
    }
    /// Whether the writers of that generation were found to be shut out.
    pub fn is_shut_out(&self, generation: u64) -> bool {
        self.state.lock().is_shut_out(generation)
    }
    pub(super) fn shut_out_error(&self) -> ClientError {
        let text = "another program has recovered the file, and what was written last may not be in it; stop writing, \
                    or open it anew";
        ClientError::remote(&self.what(), ErrorCode::Stale, text)
    }
    /// To be asked before each publish. If the writers were shut out what they wrote is dropped.
    pub(super) async fn check_mark(&self) -> Result<()> {
        if self.state.lock().may_publish() || self.look_unless(State::may_publish).await? {
            return Ok(());
        }
        Err(self.shut_out_error())
    }
    /// Looks at the mark, so that it is known whether writers were shut out.
    pub async fn look_at_mark(&self) -> Result<()> {
        self.look_unless(|_| false).await.map(|_| ())
    }
    /// Looks at the mark unless that is needless by now. Whether nobody was shut out by that.
    async fn look_unless(&self, needless: fn(&State) -> bool) -> Result<bool> {
        let _one_after_the_other = self.guarding.lock().await;
        let (known, mark) = {
            let state = self.state.lock();
            match &state.guard.mark {
                Some(mark) if !needless(&state) => (state.foreign, mark.clone()),
                _ => return Ok(true),
            }
        };
        let Some(value) = self.look(&mark.1, &mark.0).await? else {
            // Whoever could read it before may not any more.
            self.state.lock().guard.saw(known);
            return Ok(true);
        };
        Ok(self.with(0, |state| {
            let same = value == state.guard.value;
            if !same {
                state.shut_out(value);
            }
            state.guard.saw(known);
            same
        }))
    }
    /// `None` if he may not read it.
    async fn look(&self, writer: &Volume, name: &[u8]) -> Result<Looked> {
        match writer.get_xattr(self.inode, name).await {
            Ok(value) => Ok(Some(Some(value))),
            Err(error) if error.code() == Some(ErrorCode::NoAttribute) => Ok(Some(None)),
            Err(error) if error.code() == Some(ErrorCode::PermissionDenied) => Ok(None),
            Err(error) => Err(self.named(error)),
        }
    }
}
