//! Space of files: allocating, punching, holes, copying ranges.
use crate::abi::file::{CopyFileRangeIn, FallocateIn, LseekIn, LseekOut, WriteOut};
use crate::abi::opcode::Opcode;
use crate::session::Session;
use crate::session::reply::{Outcome, Reply};
use crate::session::request::Request;
use cairn_vfs::{Handle, Seek};

/// Most that one request copies, so that it stays far from its deadline; programs call again for the rest.
const COPY_MAX: u64 = 1 << 30;

impl Session {
    pub(in crate::session) async fn space(&self, opcode: Opcode, request: &Request) -> Outcome {
        match opcode {
            Opcode::Fallocate => {
                let asked: FallocateIn = request.arg()?;
                self.table.mark_dirty(asked.fh);
                let range = (asked.offset, asked.length);
                self.vfs.fallocate(Handle(asked.fh), asked.mode as i32, range, &[self.root]).await?;
                Ok(Reply::Done)
            }
            Opcode::Lseek => {
                let asked: LseekIn = request.arg()?;
                let what = match asked.whence as i32 {
                    libc::SEEK_DATA => Seek::Data,
                    libc::SEEK_HOLE => Seek::Hole,
                    _ => return Ok(Reply::Errno(libc::EINVAL)),
                };
                let offset = self.vfs.lseek(Handle(asked.fh), asked.offset, what).await?;
                Ok(Reply::of(&LseekOut { offset }))
            }
            _ => {
                let asked: CopyFileRangeIn = request.arg()?;
                if asked.flags != 0 {
                    return Ok(Reply::Errno(libc::EINVAL));
                }
                let (from, to) = ((Handle(asked.fh_in), asked.off_in), (Handle(asked.fh_out), asked.off_out));
                self.table.mark_dirty(asked.fh_out);
                let done = self.vfs.copy_file_range(from, to, asked.len.min(COPY_MAX)).await?;
                match opcode {
                    Opcode::CopyFileRange => Ok(Reply::of(&WriteOut { size: done as u32, padding: 0 })),
                    _ => Ok(Reply::of(&done)),
                }
            }
        }
    }
}
