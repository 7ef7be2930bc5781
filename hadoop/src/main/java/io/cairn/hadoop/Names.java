package io.cairn.hadoop;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;

/** Names of users and groups and their numbers, as the system of this machine knows them. A number without a name is its own name. */
final class Names {
    /** Names that are remembered; beyond it all are asked anew. */
    private static final int REMEMBERED_MAX = 10_000;
    private static final ConcurrentMap<Integer, String> USERS = new ConcurrentHashMap<>();
    private static final ConcurrentMap<Integer, String> GROUPS = new ConcurrentHashMap<>();

    private Names() {
    }

    static String user(int uid) {
        return name(USERS, uid, false);
    }

    static String group(int gid) {
        return name(GROUPS, gid, true);
    }

    private static String name(ConcurrentMap<Integer, String> known, int id, boolean group) {
        if (known.size() > REMEMBERED_MAX) {
            known.clear();
        }
        return known.computeIfAbsent(id, unknown -> {
            byte[] name = Native.nameOf(unknown, group);
            boolean found = name != null && name.length > 0;
            return found ? new String(name, StandardCharsets.UTF_8) : Integer.toUnsignedString(unknown);
        });
    }

    /** The number of a user or group; −1 for null and the empty name. */
    static long id(String name, boolean group) throws IOException {
        if (name == null || name.isEmpty()) {
            return -1;
        }
        long id = Native.idOf(name.getBytes(StandardCharsets.UTF_8), group);
        if (id >= 0) {
            return id;
        }
        try {
            return Integer.toUnsignedLong(Integer.parseUnsignedInt(name));
        } catch (NumberFormatException e) {
            throw new IOException((group ? "group " : "user ") + name + ": this machine knows no such name; "
                    + "add it, or give the number");
        }
    }
}
