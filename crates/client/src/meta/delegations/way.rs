//! Which requests of this client are answered by a delegation: all ways of requests to partitions come through here.
//!
//! What goes to the partition although it names what is led waits until that has ended. Names of tops are looked at in
//! requests that name directories above: the partition has what was stored of a top, which is not all, so a top is
//! removed when everything is stored, and its delegation ends before anything else happens to its name.
use super::held::{Changed, Held, Told};
use super::refused;
use crate::encoded_message::{Coming, EncodedMessage};
use crate::error::{ClientError, Result};
use crate::meta::call::MetaCaller;
use cairn_delegate_core::delegate::Read;
use cairn_delegate_core::way::Way;
use cairn_types::{ErrorCode, Time};
use cairn_wire::Opcode;
use cairn_wire::meta::{MetaHeader, RemoveTreeRequest, RenameRequest, RmdirRequest};
use prost::Message as _;
use std::sync::Arc;
use std::time::Duration;

/// What a change came to.
pub(in crate::meta) enum Led {
    /// It is answered, in place of this partition.
    Answered(EncodedMessage, u32),
    /// It goes to the partition.
    Partition,
    /// The same, and it removes a top: what came of it is to be told.
    Removes(Removal),
}

/// A top that the partition is asked to remove. Dropped, nobody knows whether it did: then it is led no longer, which
/// is true in either case when the partition is told so.
pub(in crate::meta) struct Removal {
    caller: Arc<MetaCaller>,
    held: Arc<Held>,
    is_told: bool,
}

/// Refusals of a Rmdir behind which the directory certainly is as it was.
const STAYS: [ErrorCode; 4] =
    [ErrorCode::NotEmpty, ErrorCode::PermissionDenied, ErrorCode::NotPermitted, ErrorCode::KeyForbids];

impl Removal {
    /// What the partition said.
    pub(in crate::meta) fn told<A>(mut self, outcome: &Result<A>) {
        let code = outcome.as_ref().err().and_then(ClientError::code);
        let stays = code.is_some_and(|code| STAYS.contains(&code));
        if outcome.is_ok() || stays {
            self.held.top_removed(outcome.is_ok());
            self.is_told = true;
        }
    }
}

impl Drop for Removal {
    fn drop(&mut self) {
        if !self.is_told {
            self.held.top_removed(true);
            let Held { session, partition, number, .. } = &*self.held;
            self.caller.give_back_delegation(session, *partition, *number);
        }
    }
}

impl MetaCaller {
    /// Header of what a delegation answers: on whose behalf is all that counts.
    pub(in crate::meta) fn own_header(&self) -> MetaHeader {
        MetaHeader { who: Some(self.who.to_wire()), ..MetaHeader::default() }
    }

    /// A change, before it goes to a partition. Its header is [`own_header`](Self::own_header).
    pub(in crate::meta) fn lead<'a>(
        self: &'a Arc<Self>,
        what: &'a str,
        opcode: Opcode,
        request: EncodedMessage,
    ) -> Coming<'a, Result<Led>> {
        Box::pin(async move {
            let request = request.to_vec();
            let began = self.cluster.clock.now();
            loop {
                match self.shared.delegations.way(opcode, &request) {
                    Way::Change(number) => {
                        let Some(held) = self.shared.delegations.get(number) else { continue };
                        match self.changed_by(&held, what, opcode, &request, began).await? {
                            Some(answer) => return Ok(Led::Answered(answer, held.partition)),
                            None => self.end_led(&held, what).await?,
                        }
                    }
                    Way::Read(number) => self.end_led_of(number, what).await?,
                    Way::AfterEnd(numbers) => {
                        for number in numbers {
                            self.end_led_of(number, what).await?;
                        }
                    }
                    Way::Partition => return self.past_tops(what, opcode, &request, began).await,
                }
            }
        })
    }

    /// The answer of a delegation to a change. `None`: it is for the partition when the delegation has ended.
    async fn changed_by(
        &self,
        held: &Held,
        what: &str,
        opcode: Opcode,
        request: &[u8],
        began: Time,
    ) -> Result<Option<EncodedMessage>> {
        loop {
            let round = held.round();
            match held.change(opcode, request) {
                Changed::Answer(answer) => return Ok(Some(answer.map_err(|error| refused(what, error))?.into())),
                Changed::Elsewhere => return Ok(None),
                Changed::Wait => self.wait_for(held, round, what, began).await?,
            }
        }
    }

    /// The answer to a read that a delegation gives. `None`: it is for the partition, as it always is unless `answers`.
    pub(in crate::meta) fn read_led<'a>(
        &'a self,
        what: &'a str,
        (opcode, answers): (Opcode, bool),
        make: &'a (dyn Fn(MetaHeader) -> EncodedMessage + Send + Sync),
    ) -> Coming<'a, Result<Option<EncodedMessage>>> {
        Box::pin(async move {
            let began = self.cluster.clock.now();
            let mut request = make(self.own_header()).to_vec();
            loop {
                match self.shared.delegations.way(opcode, &request) {
                    Way::Read(number) if answers => {
                        let Some(held) = self.shared.delegations.get(number) else { continue };
                        request = make(self.header(held.partition, held.session.id, 0, 0)).to_vec();
                        match self.read_by_held(&held, what, opcode, &request, began).await? {
                            Some(answer) => return Ok(Some(answer)),
                            None => self.end_led(&held, what).await?,
                        }
                    }
                    Way::Read(number) | Way::Change(number) => self.end_led_of(number, what).await?,
                    Way::AfterEnd(numbers) => {
                        for number in numbers {
                            self.end_led_of(number, what).await?;
                        }
                    }
                    Way::Partition => return Ok(None),
                }
            }
        })
    }

    /// As [`read_led`](Self::read_led), also where nothing was ever led.
    pub(in crate::meta) async fn answered_here(
        &self,
        what: &str,
        opcode: Opcode,
        make: &(dyn Fn(MetaHeader) -> EncodedMessage + Send + Sync),
    ) -> Result<Option<EncodedMessage>> {
        match self.shared.delegations.is_any() {
            true => self.read_led(what, (opcode, true), make).await,
            false => Ok(None),
        }
    }

    pub(in crate::meta) async fn commit(&self, inode: u64) -> Result<()> {
        self.shared.delegations.commit(inode).await
    }

    pub(in crate::meta) async fn commit_all(&self) -> Result<()> {
        self.shared.delegations.commit_all().await
    }

    pub(in crate::meta) fn led_counts(&self) -> (u64, u64) {
        self.shared.delegations.counts()
    }

    pub(in crate::meta) fn lost_counts(&self) -> (u64, u64) {
        self.shared.delegations.lost_counts()
    }

    pub(in crate::meta) async fn end_leading(&self, patience: Duration) -> bool {
        self.shared.delegations.end_all(patience).await
    }

    pub(in crate::meta) fn rest_leading(&self, rests: bool) {
        self.shared.delegations.rest(rests);
    }

    pub(in crate::meta) fn lead_again(&self) {
        self.shared.delegations.lead_again();
    }

    /// The delegation that covers an inode.
    pub(in crate::meta) fn led_by(&self, inode: u64) -> Option<u64> {
        self.shared.delegations.of(inode)
    }

    /// The directory above one that is led, which what is led does not tell.
    pub(in crate::meta) fn parent_of_top(&self, inode: u64) -> Option<u64> {
        let number = self.led_by(inode).filter(|number| *number == inode)?;
        // Of what a dead process led it is not known.
        Some(self.shared.delegations.get(number)?.parent).filter(|parent| *parent != 0)
    }

    async fn read_by_held(
        &self,
        held: &Held,
        what: &str,
        opcode: Opcode,
        request: &[u8],
        began: Time,
    ) -> Result<Option<EncodedMessage>> {
        loop {
            let (round, mut answer) = (held.round(), Vec::new());
            match held.read(opcode, request, &mut answer) {
                Read::Answered => return Ok(Some(answer.into())),
                Read::Refused(error) => return Err(refused(what, error)),
                Read::Elsewhere => return Ok(None),
                Read::Wait => self.wait_for(held, round, what, began).await?,
            }
        }
    }

    /// Something cannot be answered now; it is tried for as long as a leader would be.
    async fn wait_for(&self, held: &Held, round: u64, what: &str, began: Time) -> Result<()> {
        let left = self.cluster.patience.saturating_sub(self.cluster.clock.now().since(began));
        match tokio::time::timeout(left, held.next_round(round)).await {
            Ok(()) => Ok(()),
            Err(_) => {
                let last = "what was done in the directory before could not be stored yet, or the session not renewed";
                Err(self.cluster.gave_up(what, false, last.to_owned()))
            }
        }
    }

    /// Ends a delegation, and waits for it. What waits cannot be thrown away, so this has no limit of its own.
    async fn end_led(&self, held: &Held, what: &str) -> Result<()> {
        held.end().await.map_err(|error| refused(what, error))
    }

    async fn end_led_of(&self, number: u64, what: &str) -> Result<()> {
        match self.shared.delegations.get(number) {
            Some(held) => self.end_led(&held, what).await,
            None => Ok(()),
        }
    }

    /// A request that names nothing that is led, but maybe the name of a top.
    async fn past_tops(self: &Arc<Self>, what: &str, opcode: Opcode, request: &[u8], began: Time) -> Result<Led> {
        let names = names_of(opcode, request);
        if names.is_empty() {
            return Ok(Led::Partition);
        }
        let named: Vec<_> = self.shared.delegations.all();
        for held in named.into_iter().filter(|held| names.iter().any(|(_, name)| *name == held.name)) {
            let is_own = opcode == Opcode::Rmdir && names[0].0 == held.parent;
            loop {
                // By the name alone it may be another one, which is no reason to be clever.
                let round = held.round();
                match if is_own { held.remove_top().await } else { Told::Elsewhere } {
                    Told::AskToRemove => {
                        let caller = self.clone();
                        return Ok(Led::Removes(Removal { caller, held, is_told: false }));
                    }
                    Told::Wait => self.wait_for(&held, round, what, began).await?,
                    Told::Elsewhere | Told::Committed(_) => {
                        // What was lost keeps nobody from removing the directory.
                        let _lost = held.end().await;
                        break;
                    }
                }
            }
        }
        Ok(Led::Partition)
    }
}

/// Names of entries, with their directories, that may go or become others.
fn names_of(opcode: Opcode, request: &[u8]) -> Vec<(u64, Vec<u8>)> {
    let found = match opcode {
        Opcode::Rmdir => RmdirRequest::decode(request).map(|request| vec![(request.parent, request.name)]),
        Opcode::RemoveTree => RemoveTreeRequest::decode(request).map(|request| vec![(request.parent, request.name)]),
        Opcode::Rename => RenameRequest::decode(request)
            .map(|request| vec![(request.parent, request.name), (request.new_parent, request.new_name)]),
        _ => return Vec::new(),
    };
    found.unwrap_or_default()
}
