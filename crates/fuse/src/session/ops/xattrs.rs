//! Extended attributes.
use crate::abi::init::SETXATTR_EXT;
use crate::abi::names::{GetxattrIn, SETXATTR_ACL_KILL_SGID, SETXATTR_IN_SHORT, SetxattrIn};
use crate::abi::opcode::Opcode;
use crate::session::reply::{Outcome, Reply};
use crate::session::request::Request;
use crate::session::{Session, caller};
use cairn_vfs::{Caller, SetAttr, VfsError};
use zerocopy::FromBytes;

/// The label of SELinux. A kernel that has one for a mount does not ask for it.
const LABEL: &[u8] = b"security.selinux";

impl Session {
    pub(in crate::session) async fn xattrs(&self, opcode: Opcode, request: &Request) -> Outcome {
        let (ino, who) = (self.ino(request.header.nodeid), caller::of(&request.header, 0));
        match opcode {
            Opcode::Setxattr => self.set_xattr(request, ino, &who).await,
            Opcode::Removexattr => {
                self.vfs.removexattr(&who, ino, request.name(0)?).await?;
                Ok(Reply::Done)
            }
            Opcode::Getxattr => {
                let asked: GetxattrIn = request.arg()?;
                let name = request.name(size_of::<GetxattrIn>())?;
                match self.vfs.getxattr(&who, ino, name).await {
                    // So `ls -l` does not ask for the label of each file.
                    Err(error) if name == LABEL && error.errno == libc::ENODATA => Ok(Reply::Errno(libc::EOPNOTSUPP)),
                    value => sized(asked.size, value?),
                }
            }
            _ => {
                let asked: GetxattrIn = request.arg()?;
                let mut list = Vec::new();
                for name in self.vfs.listxattr(&who, ino).await? {
                    list.extend_from_slice(&name);
                    list.push(0);
                }
                sized(asked.size, list)
            }
        }
    }
    async fn set_xattr(&self, request: &Request, ino: u64, who: &Caller) -> Outcome {
        let skip = if self.agreed.has(SETXATTR_EXT) { size_of::<SetxattrIn>() } else { SETXATTR_IN_SHORT };
        let mut whole = [0u8; size_of::<SetxattrIn>()];
        whole[..skip].copy_from_slice(request.bytes(0, skip)?);
        let asked = SetxattrIn::read_from_bytes(&whole)
            .map_err(|_| VfsError::new(libc::EIO, "a setxattr request of another size"))?;
        let name = request.name(skip)?;
        let value = request.bytes(skip + name.len() + 1, asked.size as usize)?;
        self.vfs.setxattr(who, ino, name, value, asked.flags).await?;
        if asked.setxattr_flags & SETXATTR_ACL_KILL_SGID != 0 {
            let (attr, _) = self.vfs.getattr(who, ino, None).await?;
            if attr.mode & libc::S_ISGID != 0 {
                let set = SetAttr { mode: Some(attr.mode & 0o7777 & !libc::S_ISGID), ..Default::default() };
                self.vfs.setattr(who, ino, None, set).await?;
            }
        }
        Ok(Reply::Done)
    }
}

/// With a size of 0 only the length is asked for.
fn sized(size: u32, value: Vec<u8>) -> Outcome {
    match size as usize {
        0 => Ok(Reply::of(&GetxattrIn { size: value.len() as u32, padding: 0 })),
        room if value.len() > room => Ok(Reply::Errno(libc::ERANGE)),
        _ => Ok(Reply::Small(value)),
    }
}
