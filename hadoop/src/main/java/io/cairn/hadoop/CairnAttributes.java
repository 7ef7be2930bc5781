package io.cairn.hadoop;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.XAttrSetFlag;
import org.apache.hadoop.fs.permission.AclEntry;
import org.apache.hadoop.fs.permission.AclEntryScope;
import org.apache.hadoop.fs.permission.AclEntryType;
import org.apache.hadoop.fs.permission.AclStatus;
import org.apache.hadoop.fs.permission.FsAction;
import org.apache.hadoop.fs.permission.FsPermission;

/** Operations on what files and directories are beside their contents: owners, permissions, times, extended attributes, ACLs; and truncate. */
abstract class CairnAttributes extends CairnNames {
    @Override
    public void setPermission(Path given, FsPermission permission) throws IOException {
        set(given, permission.toShort() & 01777, -1, -1, -1, Native.SAME, Native.SAME);
    }

    @Override
    public void setOwner(Path given, String user, String group) throws IOException {
        set(given, -1, Names.id(user, false), Names.id(group, true), -1, Native.SAME, Native.SAME);
    }

    /** −1 leaves a time as it is. */
    @Override
    public void setTimes(Path given, long modified, long accessed) throws IOException {
        long accessedNs = accessed < 0 ? Native.SAME : Math.multiplyExact(accessed, 1_000_000L);
        long modifiedNs = modified < 0 ? Native.SAME : Math.multiplyExact(modified, 1_000_000L);
        set(given, -1, -1, -1, -1, accessedNs, modifiedNs);
    }

    /** As in crates/sdk/src/fence.rs. */
    static final String RECOVERED = "user.cairn.recovered";

    void set(Path given, int mode, long uid, long gid, long size, long accessed, long modified)
            throws IOException {
        Path path = absolute(given);
        statistics.incrementWriteOps(1);
        Volumes.Place place = place(path);
        Errors.check(Native.setMetadata(place.volume, place.path, mode, uid, gid, size, accessed, modified), path);
    }

    /** Done when it returns. */
    @Override
    public boolean truncate(Path given, long length) throws IOException {
        Path path = absolute(given);
        FileStatus there = getFileStatus(path);
        if (there.isDirectory()) {
            throw new FileNotFoundException(path + ": it is a directory; name a file");
        }
        if (length < 0 || length > there.getLen()) {
            throw new IllegalArgumentException(path + ": it has " + there.getLen() + " bytes and cannot be cut to " + length);
        }
        set(path, -1, -1, -1, length, Native.SAME, Native.SAME);
        return true;
    }

    @Override
    public void access(Path given, FsAction mode) throws IOException {
        Path path = absolute(given);
        statistics.incrementReadOps(1);
        Volumes.Place place = volumes.find(path);
        if (place != null) {
            Errors.check(Native.change(place.volume, place.path, Native.ACCESS, mode.ordinal()), path);
        } else if (mode.implies(FsAction.WRITE)) {
            place(path);
        }
    }

    @Override
    public void setXAttr(Path given, String name, byte[] value, EnumSet<XAttrSetFlag> flags) throws IOException {
        Path path = absolute(given);
        Volumes.Place place = place(path);
        boolean create = flags.contains(XAttrSetFlag.CREATE);
        boolean replace = flags.contains(XAttrSetFlag.REPLACE);
        int how = create == replace ? 0 : create ? 1 : 2;
        byte[] bytes = value == null ? new byte[0] : value;
        Errors.check(Native.setXattr(place.volume, place.path, bytes(name), bytes, how), path);
    }

    @Override
    public byte[] getXAttr(Path given, String name) throws IOException {
        Path path = absolute(given);
        Volumes.Place place = place(path);
        return Errors.check(Native.getXattr(place.volume, place.path, bytes(name)), path);
    }

    @Override
    public Map<String, byte[]> getXAttrs(Path given) throws IOException {
        return getXAttrs(given, listXAttrs(given));
    }

    @Override
    public Map<String, byte[]> getXAttrs(Path given, List<String> names) throws IOException {
        Map<String, byte[]> all = new HashMap<>();
        for (String name : names) {
            all.put(name, getXAttr(given, name));
        }
        return all;
    }

    /** Without those that are ACLs, and the mark of lease recovery. */
    @Override
    public List<String> listXAttrs(Path given) throws IOException {
        Path path = absolute(given);
        Volumes.Place place = place(path);
        List<String> names = Record.names(Errors.check(Native.listXattrs(place.volume, place.path), path));
        names.removeIf(name -> name.startsWith("system.") || name.equals(RECOVERED));
        return names;
    }

    @Override
    public void removeXAttr(Path given, String name) throws IOException {
        Path path = absolute(given);
        Volumes.Place place = place(path);
        Errors.check(Native.removeXattr(place.volume, place.path, bytes(name)), path);
    }

    /** The entries of an ACL, or those of the mode where there is none; nothing for the default ACL. */
    List<AclEntry> acl(Path path, AclEntryScope scope) throws IOException {
        Volumes.Place place = place(path);
        String name = scope == AclEntryScope.ACCESS ? Acls.ACCESS : Acls.DEFAULT;
        byte[] value = Native.getXattr(place.volume, place.path, bytes(name));
        if (value != null) {
            return Acls.decode(value, scope);
        }
        Errors.Failure failure = Errors.last();
        if (!failure.is(Errors.ENODATA)) {
            throw failure.of(path);
        }
        return scope == AclEntryScope.ACCESS ? Acls.ofMode(get(place, path).mode, scope) : new ArrayList<>();
    }

    void setAcl(Path path, AclEntryScope scope, List<AclEntry> entries) throws IOException {
        Volumes.Place place = place(path);
        byte[] name = bytes(scope == AclEntryScope.ACCESS ? Acls.ACCESS : Acls.DEFAULT);
        if (!entries.isEmpty()) {
            Errors.check(Native.setXattr(place.volume, place.path, name, Acls.encode(entries), 0), path);
        } else if (Native.removeXattr(place.volume, place.path, name) < 0) {
            Errors.Failure failure = Errors.last();
            if (!failure.is(Errors.ENODATA)) {
                throw failure.of(path);
            }
        }
    }

    static boolean hasMask(List<AclEntry> entries) {
        return entries.stream().anyMatch(entry -> entry.getType() == AclEntryType.MASK);
    }

    @Override
    public void modifyAclEntries(Path given, List<AclEntry> changes) throws IOException {
        Path path = absolute(given);
        for (AclEntryScope scope : AclEntryScope.values()) {
            List<AclEntry> own = Acls.of(changes, scope);
            if (!own.isEmpty()) {
                List<AclEntry> merged = Acls.merge(acl(path, scope), own);
                setAcl(path, scope, Acls.complete(merged, acl(path, AclEntryScope.ACCESS), scope, hasMask(own)));
            }
        }
    }

    @Override
    public void removeAclEntries(Path given, List<AclEntry> gone) throws IOException {
        Path path = absolute(given);
        for (AclEntryScope scope : AclEntryScope.values()) {
            List<AclEntry> own = Acls.of(gone, scope);
            if (!own.isEmpty()) {
                List<AclEntry> left = Acls.without(acl(path, scope), own);
                setAcl(path, scope, Acls.complete(left, acl(path, AclEntryScope.ACCESS), scope, false));
            }
        }
    }

    @Override
    public void removeDefaultAcl(Path given) throws IOException {
        setAcl(absolute(given), AclEntryScope.DEFAULT, new ArrayList<>());
    }

    @Override
    public void removeAcl(Path given) throws IOException {
        Path path = absolute(given);
        // Without those that have names, and without the mask, it says no more than a mode: in one step there is no list any more.
        List<AclEntry> plain = acl(path, AclEntryScope.ACCESS);
        plain.removeIf(entry -> entry.getName() != null || entry.getType() == AclEntryType.MASK);
        setAcl(path, AclEntryScope.ACCESS, plain);
        if (getFileStatus(path).isDirectory()) {
            removeDefaultAcl(path);
        }
    }

    @Override
    public void setAcl(Path given, List<AclEntry> entries) throws IOException {
        Path path = absolute(given);
        List<AclEntry> base = acl(path, AclEntryScope.ACCESS);
        for (AclEntryScope scope : AclEntryScope.values()) {
            List<AclEntry> own = Acls.of(entries, scope);
            if (!own.isEmpty()) {
                setAcl(path, scope, Acls.complete(own, base, scope, hasMask(own)));
            } else if (scope == AclEntryScope.DEFAULT && getFileStatus(path).isDirectory()) {
                removeDefaultAcl(path);
            }
        }
    }

    /** Whether anything but the permission is known to say who may do what. */
    boolean hasAcl(Path path, boolean directory) {
        try {
            return hasMask(acl(path, AclEntryScope.ACCESS)) || directory && !acl(path, AclEntryScope.DEFAULT).isEmpty();
        } catch (IOException e) {
            // It is gone, or nobody tells: whoever asks cannot be told otherwise.
            return false;
        }
    }

    /** Without what the permission says: owner, mask and others, and the group where nobody has a name. */
    @Override
    public AclStatus getAclStatus(Path given) throws IOException {
        FileStatus status = getFileStatus(given);
        Path path = absolute(given);
        List<AclEntry> shown = new ArrayList<>();
        List<AclEntry> entries = acl(path, AclEntryScope.ACCESS);
        if (hasMask(entries)) {
            for (AclEntry entry : entries) {
                boolean group = entry.getType() == AclEntryType.GROUP;
                if (entry.getName() != null || group) {
                    shown.add(entry);
                }
            }
        }
        if (status.isDirectory()) {
            shown.addAll(acl(path, AclEntryScope.DEFAULT));
        }
        return new AclStatus.Builder().owner(status.getOwner()).group(status.getGroup())
                .stickyBit(status.getPermission().getStickyBit()).setPermission(status.getPermission())
                .addEntries(shown).build();
    }
}
