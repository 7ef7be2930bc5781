//! Manager and namespace of the cluster in memory.
use super::{Fake, State};
use cairn_meta_core::AppliedAt;
use cairn_rpc::{Reply, Request};
use cairn_types::{ErrorCode, MemberState, WallTime};
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use cairn_wire::manager::*;
use cairn_wire::meta::KeepAliveResponse;

impl Fake {
    pub(super) fn front(&self, request: Request<'_>, reply: Reply) {
        let mut state = self.state.lock();
        let Some(opcode) = Opcode::from_code(request.opcode) else {
            return reply.err(WireError::new(ErrorCode::UnknownOperation, "unknown"));
        };
        if state.starting > 0 {
            state.starting -= 1;
            return reply.err(WireError::new(ErrorCode::Unavailable, "the manager role is still starting"));
        }
        match opcode {
            Opcode::GetMap => reply.ok(&state.map(), ()),
            Opcode::OpenSession => {
                state.next_session += 1;
                reply.ok(&OpenSessionResponse { session: state.next_session, map: None }, ());
            }
            Opcode::EnsurePgs => reply.ok(&EnsurePgsResponse { map: Some(state.map()) }, ()),
            Opcode::ReportMember => match request.decode::<ReportMemberRequest>() {
                Ok(report) => reply.ok(&state.report(&report), ()),
                Err(error) => reply.err(error),
            },
            Opcode::KeepAlive => reply.ok(&KeepAliveResponse { lease_ms: 60_000 }, ()),
            other => {
                let mut out = Vec::new();
                match state.namespace_call(other, request.message, &mut out) {
                    Ok(()) => reply.ok_with(|to| to.extend_from_slice(&out), ()),
                    Err(error) => reply.err(error),
                }
            }
        }
    }
}

impl State {
    /// A member that does not answer leaves all its groups.
    fn report(&mut self, report: &ReportMemberRequest) -> ReportMemberResponse {
        self.reports += 1;
        let gone = self.stopped.contains(&report.disk);
        let serves = |pg: &&cairn_wire::data::PgState| {
            pg.members.iter().any(|m| m.disk == report.disk && m.state == MemberState::Serving as u32)
        };
        let groups: Vec<u32> = self.pgs.values().filter(serves).map(|pg| pg.pg).collect();
        for pg in groups.into_iter().filter(|_| gone) {
            self.set_member(pg, report.disk, MemberState::Offline);
        }
        ReportMemberResponse { state: self.pgs.get(&report.pg).cloned(), removed: gone }
    }
    fn namespace_call(&mut self, opcode: Opcode, request: &[u8], out: &mut Vec<u8>) -> Result<(), WireError> {
        if opcode.code() < 0x0500 {
            return self.namespace.read(opcode, request, out);
        }
        self.log_index += 1;
        let at = AppliedAt { index: self.log_index, time: WallTime(1_000_000 + self.log_index) };
        self.namespace.apply(at, opcode, request, out)
    }
}
