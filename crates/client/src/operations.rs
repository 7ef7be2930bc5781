//! Names of operations, for who shows what went over the wire.
use cairn_wire::Opcode;

/// The name of the operation with that number; `None`: of a later version.
pub fn operation_name(code: u16) -> Option<&'static str> {
    Opcode::from_code(code).map(Opcode::name)
}
