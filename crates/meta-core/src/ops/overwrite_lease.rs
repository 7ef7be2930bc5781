//! OverwriteLease: the right to change blocks of a file where they are, of one session at a time.
//!
//! Data nodes know nothing of leases. What makes changes in place safe is said here: while a session has the lease, no
//! request that does not name its number takes extents out of the file, so the blocks that the session changes are
//! those that the file names; and behind the changes the contents' version is raised, so that a conversion, which swaps
//! extents only on top of the version that it read, never swaps in what it read before.
//!
//! Invariants: a lease's session holds the file for writing, and the lease goes with the hold; numbers of a file's
//! leases ascend; a lease raises the generation and not the version, and nothing raises the version by more than the
//! generation, so that who moves bytes sees whether there was a lease meanwhile (`moving` in `client`). A lease that is
//! in the way is noted as wanted; telling its session is the server's (`meta`).
use crate::encoding::{Inode, OverwriteLease};
use crate::error::{OpError, Result};
use crate::message::request;
use crate::message::writer::{put_attributes, put_number};
use crate::namespace::{Context, Namespace};
use crate::permission::mode_after_write;
use crate::session::SessionState;
use cairn_types::ErrorCode;

const HELD: OpError = OpError::new(
    ErrorCode::LeaseHeld,
    "another client overwrites the file in place and is told to stop; repeat in a moment",
);

impl Namespace {
    pub(crate) fn overwrite_lease(&mut self, context: &Context<'_>, bytes: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let request = request::OverwriteLease::decode(bytes)?;
        let id = request.inode;
        let mut number = 0;
        let mut inode = if request.release { self.live_inode(id)? } else { self.writable_file(id, context)? };
        if request.release {
            let own = OverwriteLease { session: context.session, number: request.number };
            if inode.lease == Some(own) {
                inode.lease = None;
                self.snapshots.leases.remove(&id);
                if !request.answered {
                    self.note_lapsed();
                }
                if request.changed {
                    self.changed_in_place(id, &mut inode, context, request.mtime_ns);
                } else {
                    inode.generation = inode.generation.wrapping_add(1);
                }
                self.put_inode(id, &inode);
            }
        } else if !self.may_write_by_hold(context.session, id) {
            let text = "a file is overwritten in place by a session that holds it for writing; hold it first";
            return Err(OpError::new(ErrorCode::InvalidArgument, text));
        } else if inode.volatile.is_some() {
            // Members overwrite in place only what is durable; it is granted as soon as all of the file is.
            number = 0;
        } else if !self.may_give_leases(context.now) {
            // What a snapshot names is not changed; whoever asks writes to new space.
            number = 0;
        } else if let Some(lease) = inode.lease {
            self.wanted_leases.push((lease.session, id));
        } else {
            inode.generation = inode.generation.wrapping_add(1);
            number = inode.generation;
            inode.lease = Some(OverwriteLease { session: context.session, number });
            self.snapshots.leases.insert(id);
            self.put_inode(id, &inode);
        }
        put_number(out, 1, number);
        put_attributes(out, 2, id, &inode);
        Ok(())
    }

    /// What a write changes, for one that came without a publish.
    fn changed_in_place(&mut self, id: u64, inode: &mut Inode, context: &Context<'_>, mtime_ns: u64) {
        inode.data_version += 1;
        inode.mode = mode_after_write(inode, &context.who);
        self.drop_capability(id, inode);
        inode.touch_contents(context.now);
        if mtime_ns != 0 {
            inode.mtime = mtime_ns;
        }
    }

    /// Refuses what takes extents out of a file of which somebody else may be changing the blocks. `number`: the lease
    /// that the request names.
    pub(crate) fn check_lease(&mut self, id: u64, inode: &Inode, session: u64, number: u64) -> Result<()> {
        match inode.lease {
            Some(lease) if lease != (OverwriteLease { session, number }) => {
                self.wanted_leases.push((lease.session, id));
                Err(HELD)
            }
            _ => Ok(()),
        }
    }

    /// Whether the file names bytes in this range.
    pub(crate) fn has_extents(&self, id: u64, inode: &Inode, from: u64, to: u64) -> Result<bool> {
        let mut any = false;
        if inode.stored > 0 && from < to.min(inode.size) {
            self.visit_extents(id, from, to.min(inode.size), |_| {
                any = true;
                false
            })?;
        }
        Ok(any)
    }

    /// The session lets go of the file, or ended: nobody said whether blocks were changed.
    pub(crate) fn lose_lease(&mut self, id: u64, inode: &mut Inode, session: u64) {
        inode.lease = None;
        self.snapshots.leases.remove(&id);
        // Nobody said that all was answered, whether the session is there or not.
        self.note_lapsed();
        inode.data_version += 1;
        if self.sessions.state(session) == SessionState::Live {
            // Who is there would have said so, and when.
            inode.touch(self.time);
        } else {
            inode.touch_contents(self.time);
        }
        self.put_inode(id, inode);
    }

    /// Sessions and inodes of overwrite leases that were in somebody's way since the last call, each once.
    pub fn take_wanted_leases(&mut self) -> Vec<(u64, u64)> {
        let mut wanted = std::mem::take(&mut self.wanted_leases);
        wanted.sort_unstable();
        wanted.dedup();
        wanted
    }

    /// Number of the lease under which a session may overwrite the file in place.
    pub fn overwrite_lease_of(&self, session: u64, inode: u64) -> Option<u64> {
        let lease = self.stored_inode(inode).ok()?.lease?;
        (lease.session == session).then_some(lease.number)
    }
}
