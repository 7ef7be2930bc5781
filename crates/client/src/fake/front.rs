//! Manager and namespace of the cluster in memory.
use super::across::header_of;
use super::{Fake, Raw, State, decode};
use cairn_meta_core::{AppliedAt, SessionState};
use cairn_types::{ErrorCode, ExtentKind, MemberState, WallTime};
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use cairn_wire::manager::*;
use cairn_wire::meta::{
    DiscardRequest, KeepAliveRequest, KeepAliveResponse, ReadStaleRequest, ReadStaleResponse, WantedLease,
};
use prost::Message as _;

impl Fake {
    /// What manager and namespace answer.
    pub(super) fn front(&self, opcode: Opcode, message: &[u8]) -> Raw {
        let mut state = self.state.lock();
        if state.starting > 0 {
            state.starting -= 1;
            return Err(WireError::new(ErrorCode::Unavailable, "the manager role is still starting"));
        }
        let of_partition = matches!(opcode.code() >> 8, 0x04 | 0x05);
        let answer = match opcode {
            Opcode::ReadStale => state.read_stale(&decode(message)?)?.encode_to_vec(),
            _ if of_partition && state.leaderless_for.is_some() => return Err(WireError::not_leader(None)),
            Opcode::GetMap if state.without_volume > 0 => {
                state.without_volume -= 1;
                let map = ClusterMap { volumes: Vec::new(), partitions: Vec::new(), ..state.map() };
                state.version += 1;
                map.encode_to_vec()
            }
            Opcode::GetMap => state.map().encode_to_vec(),
            Opcode::OpenSession => {
                state.next_session += 1;
                OpenSessionResponse { session: state.next_session, map: None }.encode_to_vec()
            }
            Opcode::PublishVolatile | Opcode::PublishAttributes | Opcode::AppendTurn if state.of_older_build => {
                return Err(WireError::new(ErrorCode::UnknownOperation, "not before all members know it"));
            }
            Opcode::EnsurePgs if state.lack_disks => {
                return Err(WireError::new(ErrorCode::NotEnoughDisks, "too few disks in service"));
            }
            Opcode::EnsurePgs if state.full => {
                return Err(WireError::new(ErrorCode::NoSpace, "no disk has room"));
            }
            Opcode::EnsurePgs => EnsurePgsResponse { map: Some(state.map()), pg: state.shards }.encode_to_vec(),
            Opcode::ReportMember => state.report(&decode::<ReportMemberRequest>(message)?).encode_to_vec(),
            Opcode::KeepAlive => {
                let header = decode::<KeepAliveRequest>(message)?.header.unwrap_or_default();
                state.keep_alive(header.partition, header.session)?.encode_to_vec()
            }
            other => {
                let mut out = Vec::new();
                state.namespace_call(other, message, &mut out)?;
                out
            }
        };
        Ok((answer, Vec::new()))
    }
}

impl State {
    /// A member that does not answer leaves all its groups.
    fn report(&mut self, report: &ReportMemberRequest) -> ReportMemberResponse {
        self.reports += 1;
        let gone = self.stopped.contains(&report.disk) || self.ping(report.disk).stalled;
        let serves = |pg: &&cairn_wire::data::PgState| {
            pg.members.iter().any(|m| m.disk == report.disk && m.state == MemberState::Serving as u32)
        };
        let groups: Vec<u32> = self.pgs.values().filter(serves).map(|pg| pg.pg).collect();
        for pg in groups.into_iter().filter(|_| gone) {
            self.set_member(pg, report.disk, MemberState::Offline);
        }
        ReportMemberResponse { state: self.pgs.get(&report.pg).cloned(), removed: gone }
    }
    fn read_stale(&mut self, request: &ReadStaleRequest) -> Result<ReadStaleResponse, WireError> {
        let age_ms = self.leaderless_for.unwrap_or(0);
        if request.age_ms_max != 0 && age_ms > request.age_ms_max {
            return Err(WireError::new(ErrorCode::Unavailable, "too old"));
        }
        let opcode = Opcode::from_code(request.opcode as u16).filter(|opcode| opcode.may_be_stale());
        let mut answer = Vec::new();
        let partition = request.header.as_ref().map_or(1, |header| header.partition);
        let read = self.partition(partition)?.read(opcode.expect("a read"), &request.request, &mut answer);
        let (error, error_text) = read.err().map_or((0, String::new()), |e| (u32::from(e.code.code()), e.message));
        Ok(ReadStaleResponse { age_ms, answer, error, error_text, ..Default::default() })
    }
    fn keep_alive(&mut self, partition: u32, session: u64) -> Result<KeepAliveResponse, WireError> {
        let wanted: Vec<u64> = self.wanted.iter().filter(|(of, _)| *of == session).map(|(_, inode)| *inode).collect();
        let namespace = self.partition(partition)?;
        if namespace.session_state(session) == SessionState::Ended {
            return Err(WireError::new(ErrorCode::SessionEnded, "the session has ended"));
        }
        let wanted = wanted.iter().filter_map(|inode| {
            let number = namespace.overwrite_lease_of(session, *inode)?;
            Some(WantedLease { inode: *inode, number })
        });
        let wanted = wanted.collect();
        let led = namespace.take_wanted_delegations();
        self.wanted_delegations.extend(led);
        let told = self.wanted_delegations.iter().filter(|(of, _)| *of == session).map(|(_, number)| *number);
        let delegations: Vec<u64> = told.filter(|number| self.namespace.is_led_by(session, *number)).collect();
        Ok(KeepAliveResponse { lease_ms: 60_000, wanted, delegations, ..Default::default() })
    }
    fn namespace_call(&mut self, opcode: Opcode, request: &[u8], out: &mut Vec<u8>) -> Result<(), WireError> {
        let at = header_of(request).partition;
        if opcode == Opcode::AppendTurn {
            return self.append_turn(at, request, out);
        }
        if opcode.code() < 0x0500 {
            return self.partition(at)?.read(opcode, request, out);
        }
        if opcode == Opcode::Discard {
            self.discard(request)?;
        }
        let changed = if opcode == Opcode::CloseAppend { self.close_below(request)? } else { None };
        let heeded = if opcode == Opcode::Publish { self.heed_append_turns(at, request)? } else { None };
        let request = changed.as_deref().or(heeded.as_deref()).unwrap_or(request);
        let applied = self.decide(at, opcode, request, out);
        let namespace = self.partition(at)?;
        let wanted = namespace.take_wanted_leases();
        if applied.is_ok() {
            namespace.put_directory(opcode, request, out);
        }
        self.wanted.extend(wanted);
        applied
    }
    /// Spoils what was given back: whoever reads it will notice.
    fn discard(&mut self, request: &[u8]) -> Result<(), WireError> {
        let discard: DiscardRequest = decode(request)?;
        for extent in &discard.extents {
            let kind = ExtentKind::from_flags(extent.flags).expect("a known kind");
            let columns = match kind {
                // Nothing of such a chunk is freed for one file: others have the same rows.
                ExtentKind::Erasure(stripe) if stripe.is_whole_shards() => continue,
                ExtentKind::Erasure(stripe) => u64::from(stripe.columns()),
                _ => 1,
            };
            let range = (extent.chunk_offset / columns, extent.length / columns);
            if !matches!(kind, ExtentKind::Set(_)) {
                self.spoil(extent.pg, extent.index, range);
            }
        }
        self.discarded.extend(discard.extents);
        Ok(())
    }
}

impl State {
    /// An entry of the leader's own.
    pub(super) fn propose(&mut self, opcode: Opcode, request: &impl prost::Message) {
        self.log_index += 1;
        let at = AppliedAt { index: self.log_index, term: 1, time: WallTime(1_000_000 + self.log_index) };
        let applied = self.namespace.apply(at, opcode, &request.encode_to_vec(), &mut Vec::new());
        assert!(applied.is_ok(), "{applied:?}");
    }
}
