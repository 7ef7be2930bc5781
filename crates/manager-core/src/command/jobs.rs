//! Commands about long work on trees.
use prost::Message;

/// Queues long work on a tree.
#[derive(Clone, PartialEq, Message)]
pub struct StartJob {
    #[prost(uint32, tag = "1")]
    pub volume: u32,
    #[prost(bytes = "vec", tag = "2")]
    pub path: Vec<u8>,
    /// Layout bits that everything below gets.
    #[prost(uint64, tag = "3")]
    pub layout: u64,
    #[prost(uint32, tag = "4")]
    pub uid: u32,
    #[prost(uint32, tag = "5")]
    pub gid: u32,
    #[prost(uint32, repeated, tag = "6")]
    pub groups: Vec<u32>,
}

/// Gives a job to a node.
#[derive(Clone, PartialEq, Message)]
pub struct AssignJob {
    #[prost(uint64, tag = "1")]
    pub job: u64,
    /// Who had it when that was decided; 0: nobody.
    #[prost(uint32, tag = "2")]
    pub from: u32,
    #[prost(uint32, tag = "3")]
    pub node: u32,
    #[prost(uint64, tag = "4")]
    pub incarnation: u64,
}

/// What the node of a job says about it.
#[derive(Clone, PartialEq, Message)]
pub struct ReportJob {
    #[prost(uint64, tag = "1")]
    pub job: u64,
    #[prost(uint32, tag = "2")]
    pub node: u32,
    #[prost(uint64, tag = "3")]
    pub incarnation: u64,
    #[prost(uint32, tag = "4")]
    pub state: u32,
    #[prost(message, optional, tag = "5")]
    pub progress: Option<cairn_wire::manager::JobProgress>,
    #[prost(string, tag = "6")]
    pub message: String,
}

/// Ends a job that is queued or running.
#[derive(Clone, PartialEq, Message)]
pub struct CancelJob {
    #[prost(uint64, tag = "1")]
    pub job: u64,
    /// Its server was silent for so long that it has stopped.
    #[prost(bool, tag = "2")]
    pub silent: bool,
}
