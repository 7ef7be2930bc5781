//! Operations of a volume that a mount needs, by inode: opens without a log entry, holds, locks, holes, quotas.
//!
//! An open by [`Volume::open_for_read`] or [`Volume::open_for_read_at`] keeps the file alive while the session lives,
//! also when its last name goes: the session's keep-alives see to that. Each one is closed by
//! [`Volume::close_for_read`].
use super::by_inode::MadeAt;
use super::elsewhere::{LOOKUPS_MAX, NO_INODE};
use super::{Volume, attributes, shown};
use crate::attributes::Attributes;
use crate::credentials::Credentials;
use crate::encoded_message::EncodedMessage;
use crate::error::{ClientError, Result};
use crate::locks::{FileLock, LockHolder};
use crate::meta::delegations::dead::DeadSession;
use crate::meta::session::Session;
use crate::opened::Opened;
use crate::volume_counts::Quota;
use cairn_types::{ErrorCode, SessionId};
use cairn_wire::Opcode;
use cairn_wire::common::Empty;
use cairn_wire::meta::*;
use std::sync::Arc;
use std::time::Duration;

/// Opens that are overtaken by keep-alives are repeated so often.
const OPEN_ATTEMPTS: u32 = 16;
/// A wait for a lock is parked so long at a time.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(2);

/// What a wait for a lock ended with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockWait {
    /// It might be free: ask for it.
    Free,
    /// It is not: wait again.
    Held,
    /// Who is in the way waits, directly or through others, for a lock of who asks.
    Deadlock,
}

impl Volume {
    /// The number of the session that calls are made under; it changes when a session ended and another was opened.
    pub async fn session_number(&self) -> Result<u64> {
        Ok(self.caller.session().await?.id.0)
    }

    /// The same if there is a session at present; none is opened.
    pub fn present_session(&self) -> Option<u64> {
        Some(self.caller.read_header(0).session).filter(|session| *session != 0)
    }
    /// Ends the session of a process that is certainly dead, as if its lease had expired: its locks are free, what only
    /// it held open is gone.
    pub async fn end_session_of(&self, dead: u64) -> Result<()> {
        if dead == 0 || self.present_session() == Some(dead) {
            return Ok(());
        }
        let own = self.caller.partitions().await?;
        self.caller.end_everywhere("ending a dead session", SessionId(dead), own).await
    }
    /// The session of a process that is certainly dead, for one of the processes that go on with what it did: which one
    /// that is, counted.
    pub fn dead_session(&self, dead: u64, successor: u64) -> DeadSession {
        DeadSession::new(&self.caller, SessionId(dead), successor)
    }

    /// Opens an inode: checks `access` (r 4, w 2, x 1), answers attributes and up to `extents_max` extents. No log
    /// entry.
    pub async fn open_for_read(&self, inode: u64, access: u32, extents_max: u32) -> Result<Opened> {
        let request = OpenRequest { inode, access, extents_max, ..Default::default() };
        self.open_soft(inode, &format!("inode {inode}"), request).await
    }

    /// Like [`open_for_read`](Self::open_for_read), of an entry of a directory.
    pub async fn open_for_read_at(
        &self,
        parent: u64,
        name: &[u8],
        shown_as: &[u8],
        access: u32,
        extents_max: u32,
    ) -> Result<Opened> {
        let request = OpenRequest { parent, name: name.to_vec(), access, extents_max, ..Default::default() };
        let what = shown(shown_as);
        for _ in 0..LOOKUPS_MAX {
            let mut opened = self.open_soft(parent, &what, request.clone()).await;
            if let Some(shard) = self.caller.sent_on(&opened, parent, name).await? {
                opened = self.open_soft(shard, &what, OpenRequest { parent: shard, ..request.clone() }).await;
            }
            let opened = opened?;
            if !opened.attributes.is_placeholder() {
                return Ok(opened);
            }
            // Another partition has it, by now or never: nothing was opened.
            match self.open_for_read(opened.attributes.inode, access, extents_max).await {
                Err(error) if error.code() == Some(ErrorCode::Stale) => {}
                opened => return opened.map_err(|error| error.named(&what)),
            }
        }
        Err(ClientError::remote(&what, ErrorCode::Stale, NO_INODE))
    }

    async fn open_soft(&self, at: u64, what: &str, request: OpenRequest) -> Result<Opened> {
        for _ in 0..OPEN_ATTEMPTS {
            let session: Arc<Session> = self.caller.session().await?;
            if let Some(opened) = self.open_led(what, &request).await? {
                return Ok(opened);
            }
            let request = |header: MetaHeader| {
                let acknowledged = session.soft.acknowledged(header.partition).unwrap_or(0);
                let header = Some(MetaHeader { session: session.id.0, ..header });
                OpenRequest { header, acknowledged, ..request.clone() }
            };
            let answer: OpenResponse = self.caller.read_by(what, at, Opcode::Open, request).await?;
            let index = answer.index;
            let opened = Opened::of_wire(answer).map_err(|odd| odd.of(what))?;
            if opened.attributes.is_placeholder() {
                return Ok(opened);
            }
            // Who answered has what it was asked for by.
            let partition = self.caller.partition_of(at).await?;
            if session.soft.add(partition, opened.attributes.inode, index) {
                return Ok(opened);
            }
        }
        let text = "the open was overtaken by removals again and again; try again";
        Err(ClientError::remote(what, ErrorCode::Overloaded, text))
    }

    /// Opens what this client leads: it is held, so that it outlives its last name here and in the partition. `None`:
    /// it leads nothing like that.
    async fn open_led(&self, what: &str, request: &OpenRequest) -> Result<Option<Opened>> {
        let make = |header| EncodedMessage::of(&OpenRequest { header: Some(header), ..request.clone() });
        for _ in 0..OPEN_ATTEMPTS {
            let Some(answer) = self.caller.answered_here(what, Opcode::Open, &make).await? else { return Ok(None) };
            let opened = Opened::of_wire(answer.answer(what)?).map_err(|odd| odd.of(what))?;
            let inode = opened.attributes.inode;
            // It was opened with its user's permission.
            match self.as_user(Credentials::default()).hold_inode(inode, what.as_bytes(), false).await {
                // The name may have another inode by now.
                Err(error) if error.code() == Some(ErrorCode::Stale) && request.inode == 0 => {}
                held => {
                    held?;
                    self.caller.session().await?.soft.add_held(inode);
                    return Ok(Some(opened));
                }
            }
        }
        Err(ClientError::remote(what, ErrorCode::Stale, NO_INODE))
    }

    /// Closes what [`open_for_read`](Self::open_for_read) or [`open_for_read_at`](Self::open_for_read_at) opened, once
    /// for each.
    pub async fn close_for_read(&self, inode: u64) -> Result<()> {
        let partition = self.caller.partition_of(inode).await?;
        let session = self.caller.session().await?;
        if session.soft.remove_held(inode) {
            return self.release_inode(inode).await;
        }
        if session.soft.remove(partition, inode) && session.holds.remove(inode) {
            return self.release(inode).await;
        }
        Ok(())
    }

    /// Holds an inode in the log for one more handle of this client; with `write` it may be written whatever its mode
    /// becomes. Ends with [`release_inode`](Self::release_inode).
    pub async fn hold_inode(&self, inode: u64, shown_as: &[u8], write: bool) -> Result<Attributes> {
        let session = self.caller.session().await?;
        session.holds.add(inode);
        let make = |header| HoldRequest { header: Some(header), inode, write };
        let held = self.mutate::<AttributesResponse, _>(shown_as, inode, Opcode::Hold, make).await.and_then(attributes);
        if held.is_err() {
            session.holds.remove(inode);
        }
        held
    }

    /// One handle less; the hold ends with the last one. Also for files that a create made with `hold`, after
    /// [`note_held`](Self::note_held).
    pub async fn release_inode(&self, inode: u64) -> Result<()> {
        let session = self.caller.session().await?;
        if session.holds.remove(inode) { self.release(inode).await } else { Ok(()) }
    }

    /// Counts a handle whose hold came with the operation that made the file
    /// ([`NewFile::hold`](crate::changes::NewFile::hold), unnamed files).
    pub async fn note_held(&self, inode: u64) -> Result<()> {
        self.caller.session().await?.holds.add(inode);
        Ok(())
    }

    /// Whether the inode's mode and access control list give all of `mask` (r 4, w 2, x 1).
    pub async fn access_inode(&self, inode: u64, mask: u32) -> Result<()> {
        let request = |header| AccessRequest { header: Some(header), inode, mask };
        self.caller.read_by::<Empty, _>(&format!("inode {inode}"), inode, Opcode::Access, request).await.map(|_| ())
    }

    /// Extents of an inode, at most `count_max` (0: as many as fit).
    pub(crate) async fn some_extents(
        &self,
        inode: u64,
        offset: u64,
        length: u64,
        count_max: u32,
    ) -> Result<GetExtentsResponse> {
        let request =
            |header| GetExtentsRequest { header: Some(header), inode, offset, length, count_max, shared_now: false };
        self.caller.read_by(&format!("inode {inode}"), inode, Opcode::GetExtents, request).await
    }

    /// A file without a name, held by this session and counted as one handle.
    pub async fn create_unnamed_at(&self, parent: u64, mode: u32, umask: u32, layout: u64) -> Result<Attributes> {
        let make = |header| CreateUnnamedRequest { header: Some(header), parent, mode, layout, umask };
        let made: AttributesResponse = self.mutate(b"unnamed file", parent, Opcode::CreateUnnamed, make).await?;
        let made = attributes(made)?;
        self.note_held(made.inode).await?;
        Ok(made)
    }

    /// Makes a directory; the directory's default ACL or `umask` shapes its mode. In a partition of the volume; 0: the
    /// leader of the parent's chooses.
    pub async fn mkdir_masked(
        &self,
        parent: u64,
        name: &[u8],
        shown_as: &[u8],
        mode: u32,
        umask: u32,
        partition: u32,
    ) -> Result<MadeAt> {
        let asks = self.leads && partition == 0;
        let sent = self.cluster().clock.now();
        let ask = if asks { self.caller.delegations().ask(parent, sent) } else { None };
        let made = name.to_vec();
        let make = |header| {
            let header = Some(header);
            MkdirRequest { header, parent, name: made, mode, umask, partition, ask, ..Default::default() }
        };
        let (answer, by) =
            self.caller.mutate_where::<AttributesResponse, _>(&shown(shown_as), parent, Opcode::Mkdir, make).await?;
        // Before anybody here knows the directory.
        if let (Some(told), Some(session)) = (&answer.delegation, by.session) {
            self.caller.enter_delegation((by.partition, session), (parent, name), sent, told);
        }
        MadeAt::of(answer)
    }

    /// A further name for an inode.
    pub async fn link_at(&self, inode: u64, parent: u64, name: &[u8], shown_as: &[u8]) -> Result<Attributes> {
        let name = name.to_vec();
        let make = |header| LinkRequest { header: Some(header), inode, parent, name, replace: false };
        attributes(self.mutate(shown_as, parent, Opcode::Link, make).await?)
    }

    /// Moves an entry; `flags` as in renameat2(2): 1 no-replace, 2 exchange.
    pub async fn rename_at(
        &self,
        parent: u64,
        name: &[u8],
        new_parent: u64,
        new_name: &[u8],
        shown_as: &[u8],
        flags: u32,
    ) -> Result<()> {
        let (name, new_name) = (name.to_vec(), new_name.to_vec());
        let make = |header| RenameRequest { header: Some(header), parent, name, new_parent, new_name, flags };
        self.mutate::<Empty, _>(shown_as, parent, Opcode::Rename, make).await.map(|_| ())
    }

    /// Cuts a range out of a file: a hole, exact to the byte. Header and inode are filled in here.
    pub(crate) async fn punch(&self, inode: u64, shown_as: &[u8], request: PunchRequest) -> Result<Attributes> {
        let make = |header| PunchRequest { header: Some(header), inode, ..request };
        attributes(self.mutate(shown_as, inode, Opcode::Punch, make).await?)
    }

    /// Takes, changes or gives back a lock; `ErrorCode::Locked` if another owner is in the way.
    pub async fn set_lock(&self, inode: u64, shown_as: &[u8], lock: FileLock) -> Result<()> {
        let make = |header| lock.to_set(header, inode);
        self.mutate::<Empty, _>(shown_as, inode, Opcode::SetLock, make).await.map(|_| ())
    }

    /// What would be in the way of this lock; `None` if nothing is.
    pub async fn get_lock(&self, inode: u64, lock: FileLock) -> Result<Option<LockHolder>> {
        let session = self.caller.session().await?.id.0;
        let request = |header: MetaHeader| lock.to_get(MetaHeader { session, ..header }, inode);
        let what = format!("inode {inode}");
        let answer: GetLockResponse = self.caller.read_by(&what, inode, Opcode::GetLock, request).await?;
        LockHolder::of_wire(answer).map_err(|odd| odd.of(&what))
    }

    /// Waits a while (at most 2 s) for a lock to become free. Dropping the future ends the wait.
    pub async fn wait_lock(&self, inode: u64, lock: FileLock, at_most: Duration) -> Result<LockWait> {
        let session = self.caller.session().await?.id.0;
        let wait_ms = u32::try_from(at_most.min(LOCK_WAIT_MAX).as_millis()).unwrap_or(u32::MAX);
        let request = |header: MetaHeader| lock.to_wait(MetaHeader { session, ..header }, inode, wait_ms);
        let answer: WaitLockResponse =
            self.caller.read_by(&format!("inode {inode}"), inode, Opcode::WaitLock, request).await?;
        Ok(match (answer.free, answer.deadlock) {
            (true, _) => LockWait::Free,
            (false, true) => LockWait::Deadlock,
            (false, false) => LockWait::Held,
        })
    }

    /// Limits of a directory with all below it, or of the volume (inode 0); both 0: none.
    pub async fn set_quota(&self, inode: u64, shown_as: &[u8], bytes_max: u64, inodes_max: u64) -> Result<()> {
        let remove = bytes_max == 0 && inodes_max == 0;
        let make = |header| SetQuotaRequest { header: Some(header), inode, bytes_max, inodes_max, remove };
        let at = if inode == 0 { cairn_types::InodeId::ROOT.0 } else { inode };
        self.mutate::<Empty, _>(shown_as, at, Opcode::SetQuota, make).await.map(|_| ())
    }

    /// Limits and use of a directory, or of the volume (inode 0); `None` if it has no quota of its own.
    pub async fn quota(&self, inode: u64, shown_as: &[u8]) -> Result<Option<Quota>> {
        if self.caller.led_by(inode).is_some() {
            // To get one it has to be led no longer.
            return Ok(None);
        }
        let at = if inode == 0 { cairn_types::InodeId::ROOT.0 } else { inode };
        let request = |header| GetQuotaRequest { header: Some(header), inode };
        match self.caller.read_by::<QuotaResponse, _>(&shown(shown_as), at, Opcode::GetQuota, request).await {
            Ok(answer) => {
                let mut quota = answer.quota.map(Quota::of_wire);
                if let Some(volume) = quota.as_mut().filter(|_| inode == 0) {
                    self.add_use(volume).await?;
                }
                Ok(quota)
            }
            Err(error) if error.code() == Some(ErrorCode::NoAttribute) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
