//! Eras: the upper bits of a Raft term name the history of a group. A group that was restored or made anew goes on in a
//! later one. What follows from it is in `raft-host`.

/// Terms of an era, as a power of two: as many elections as there will ever be.
pub const ERA_SHIFT: u32 = 30;

/// The era of a term.
pub fn era_of(term: u64) -> u64 {
    term >> ERA_SHIFT
}

/// First term of an era.
pub fn first_term(era: u64) -> u64 {
    era << ERA_SHIFT
}
