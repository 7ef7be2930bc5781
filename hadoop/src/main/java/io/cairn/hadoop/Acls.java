package io.cairn.hadoop;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import org.apache.hadoop.fs.permission.AclEntry;
import org.apache.hadoop.fs.permission.AclEntryScope;
import org.apache.hadoop.fs.permission.AclEntryType;
import org.apache.hadoop.fs.permission.FsAction;

/**
 * POSIX ACLs as the extended attributes system.posix_acl_access and system.posix_acl_default have them (Linux, posix_acl_xattr.h), and the
 * changes that Hadoop makes to lists of entries.
 */
final class Acls {
    static final String ACCESS = "system.posix_acl_access";
    static final String DEFAULT = "system.posix_acl_default";
    private static final int VERSION = 2;
    private static final int USER_OBJ = 0x01;
    private static final int USER = 0x02;
    private static final int GROUP_OBJ = 0x04;
    private static final int GROUP = 0x08;
    private static final int MASK = 0x10;
    private static final int OTHER = 0x20;
    private static final Comparator<AclEntry> ORDER = Comparator.comparing(AclEntry::getScope)
            .thenComparing(AclEntry::getType).thenComparing(entry -> entry.getName() == null ? "" : entry.getName());

    private Acls() {
    }

    private static int tag(AclEntry entry) {
        boolean named = entry.getName() != null;
        switch (entry.getType()) {
            case USER:
                return named ? USER : USER_OBJ;
            case GROUP:
                return named ? GROUP : GROUP_OBJ;
            case MASK:
                return MASK;
            default:
                return OTHER;
        }
    }

    static List<AclEntry> decode(byte[] value, AclEntryScope scope) throws IOException {
        ByteBuffer from = ByteBuffer.wrap(value).order(ByteOrder.LITTLE_ENDIAN);
        if (value.length < 4 || from.getInt() != VERSION || (value.length - 4) % 8 != 0) {
            throw new IOException("an ACL of a form that is not known; look at it with getfacl on a mount");
        }
        List<AclEntry> entries = new ArrayList<>();
        while (from.hasRemaining()) {
            int tag = from.getShort();
            FsAction permission = FsAction.values()[from.getShort() & 7];
            int id = from.getInt();
            AclEntry.Builder entry = new AclEntry.Builder().setScope(scope).setPermission(permission);
            switch (tag) {
                case USER_OBJ:
                    entry.setType(AclEntryType.USER);
                    break;
                case USER:
                    entry.setType(AclEntryType.USER).setName(Names.user(id));
                    break;
                case GROUP_OBJ:
                    entry.setType(AclEntryType.GROUP);
                    break;
                case GROUP:
                    entry.setType(AclEntryType.GROUP).setName(Names.group(id));
                    break;
                case MASK:
                    entry.setType(AclEntryType.MASK);
                    break;
                default:
                    entry.setType(AclEntryType.OTHER);
            }
            entries.add(entry.build());
        }
        return entries;
    }

    /** Of entries of one scope, in the order that the system wants: by tag, then by number. */
    static byte[] encode(List<AclEntry> entries) throws IOException {
        List<long[]> rows = new ArrayList<>();
        for (AclEntry entry : entries) {
            boolean group = entry.getType() == AclEntryType.GROUP;
            long id = entry.getName() == null ? 0xffff_ffffL : Names.id(entry.getName(), group);
            rows.add(new long[] {tag(entry), entry.getPermission().ordinal(), id});
        }
        rows.sort(Comparator.<long[]>comparingLong(row -> row[0]).thenComparingLong(row -> row[2]));
        ByteBuffer to = ByteBuffer.allocate(4 + 8 * rows.size()).order(ByteOrder.LITTLE_ENDIAN);
        to.putInt(VERSION);
        for (long[] row : rows) {
            to.putShort((short) row[0]).putShort((short) row[1]).putInt((int) row[2]);
        }
        return to.array();
    }

    /** Whether two entries are about the same. */
    private static boolean same(AclEntry one, AclEntry other) {
        return ORDER.compare(one, other) == 0;
    }

    /** The entries of one scope. */
    static List<AclEntry> of(List<AclEntry> entries, AclEntryScope scope) {
        List<AclEntry> own = new ArrayList<>();
        for (AclEntry entry : entries) {
            if (entry.getScope() == scope) {
                own.add(entry);
            }
        }
        return own;
    }

    private static AclEntry find(List<AclEntry> entries, AclEntryType type) {
        for (AclEntry entry : entries) {
            if (entry.getType() == type && entry.getName() == null) {
                return entry;
            }
        }
        return null;
    }

    /** Puts the changes in the place of what they are about. */
    static List<AclEntry> merge(List<AclEntry> there, List<AclEntry> changes) {
        List<AclEntry> merged = without(there, changes);
        merged.addAll(changes);
        return merged;
    }

    static List<AclEntry> without(List<AclEntry> there, List<AclEntry> gone) {
        List<AclEntry> left = new ArrayList<>(there);
        left.removeIf(entry -> gone.stream().anyMatch(other -> same(entry, other)));
        return left;
    }

    /**
     * Adds what every list has: entries of owner, group and others of the base where they are missing, and a mask that lets all through,
     * unless one is given or nobody has a name.
     */
    static List<AclEntry> complete(List<AclEntry> entries, List<AclEntry> base, AclEntryScope scope, boolean keepMask) {
        List<AclEntry> whole = new ArrayList<>(entries);
        for (AclEntryType type : new AclEntryType[] {AclEntryType.USER, AclEntryType.GROUP, AclEntryType.OTHER}) {
            AclEntry known = find(base, type);
            if (find(whole, type) == null && known != null) {
                whole.add(new AclEntry.Builder().setScope(scope).setType(type).setPermission(known.getPermission()).build());
            }
        }
        AclEntry mask = find(whole, AclEntryType.MASK);
        boolean named = whole.stream().anyMatch(entry -> entry.getName() != null);
        if (!keepMask || mask == null) {
            whole.remove(mask);
            if (named || mask != null) {
                FsAction all = FsAction.NONE;
                for (AclEntry entry : whole) {
                    if (entry.getName() != null || entry.getType() == AclEntryType.GROUP) {
                        all = all.or(entry.getPermission());
                    }
                }
                whole.add(new AclEntry.Builder().setScope(scope).setType(AclEntryType.MASK).setPermission(all).build());
            }
        }
        whole.sort(ORDER);
        return whole;
    }

    /** Owner, group and others of a mode. */
    static List<AclEntry> ofMode(int mode, AclEntryScope scope) {
        List<AclEntry> base = new ArrayList<>();
        AclEntryType[] types = {AclEntryType.USER, AclEntryType.GROUP, AclEntryType.OTHER};
        for (int i = 0; i < types.length; i++) {
            FsAction permission = FsAction.values()[mode >> (6 - 3 * i) & 7];
            base.add(new AclEntry.Builder().setScope(scope).setType(types[i]).setPermission(permission).build());
        }
        return base;
    }
}
