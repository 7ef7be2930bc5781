//! How a delegation begins, and is given back: asking for one with a new directory, entering what was given, ending
//! what nobody here leads.
use super::held::{Held, Made};
use super::{Delegations, send};
use crate::meta::call::MetaCaller;
use crate::meta::session::Session;
use cairn_types::{FEATURE_LEVEL, Time};
use cairn_wire::Opcode;
use cairn_wire::common::Empty;
use cairn_wire::meta::{Delegation, DelegationAsk, EndDelegationsRequest};
use std::sync::Arc;

/// Numbers of inodes that a delegation begins with. A batch asks for more.
const IDS: u32 = 256;

impl Delegations {
    /// What a Mkdir in a directory asks for, if there is room for another delegation.
    pub(in crate::meta) fn ask(&self, parent: u64, now: Time) -> Option<DelegationAsk> {
        // Below a directory that is led everything is led with it.
        let is_new = self.of(parent).is_none() && self.has_room(now);
        is_new.then_some(DelegationAsk { ids: IDS, token: 0, level: FEATURE_LEVEL })
    }
}

impl MetaCaller {
    /// A directory was made, and is led from now on. It is not where that cannot be: then the partition is told.
    pub(in crate::meta) fn enter_delegation(
        self: &Arc<Self>,
        (partition, session): (u32, Arc<Session>),
        (parent, name): (u64, &[u8]),
        sent: Time,
        told: &Delegation,
    ) {
        let table = &self.shared.delegations;
        let made = Made { volume: self.volume, partition, session: session.clone(), parent, name, sent };
        match Held::new(&table.ranges, self.cluster.clock.clone(), made, told) {
            Ok(held) => match session.kept_slot(partition) {
                Some(slot) if held.keep_in(table.memory.get(), told.number..=told.last) => {
                    if table.enter(&held, told.number..=told.last) {
                        session.leases.leads(partition);
                        tokio::spawn(send::run(self.clone(), held, slot));
                        return;
                    }
                    held.keep_nothing();
                    slot.give_back();
                }
                Some(slot) => slot.give_back(),
                None => tracing::warn!(inode = told.number, "the session's slots are used up: a directory is not led"),
            },
            Err(error) => {
                tracing::warn!(inode = told.number, %error, "a delegated directory is given back at once");
            }
        }
        self.give_back_delegation(&session, partition, told.number);
    }

    /// The partition is told that nothing comes of a delegation. It is not waited for, and told once at a time.
    pub(in crate::meta) fn give_back_delegation(self: &Arc<Self>, session: &Arc<Session>, partition: u32, number: u64) {
        let name = (session.id.0, number);
        if !self.shared.delegations.giving.lock().insert(name) {
            return;
        }
        let (caller, session) = (self.clone(), session.clone());
        tokio::spawn(async move {
            give_back(&caller, &session, partition, number).await;
            caller.shared.delegations.giving.lock().remove(&name);
        });
    }
}

pub(super) async fn give_back(caller: &Arc<MetaCaller>, session: &Arc<Session>, partition: u32, number: u64) {
    let what = format!("giving back the delegated directory inode {number}");
    let make = |header| EndDelegationsRequest { header: Some(header), numbers: vec![number] };
    let given = caller.mutate_under::<Empty, _>(session, &what, partition, Opcode::EndDelegations, make).await;
    if let Err(error) = given {
        tracing::debug!(%error, "it is told again that it is wanted");
    }
}
