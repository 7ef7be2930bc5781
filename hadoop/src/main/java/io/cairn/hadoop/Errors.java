package io.cairn.hadoop;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.ParentNotDirectoryException;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathIOException;
import org.apache.hadoop.fs.PathIsNotEmptyDirectoryException;
import org.apache.hadoop.security.AccessControlException;
import org.apache.hadoop.util.DiskChecker.DiskOutOfSpaceException;

/**
 * Exceptions of the classes that Hadoop expects, with the path, the cause and the next step. Which class a number of the system has is also in the
 * table of crates/types/src/error_code.rs; a test compares them.
 */
final class Errors {
    static final int EPERM = 1;
    static final int ENOENT = 2;
    static final int EACCES = 13;
    static final int EEXIST = 17;
    static final int ENOTDIR = 20;
    static final int EISDIR = 21;
    static final int EINVAL = 22;
    static final int ENOSPC = 28;
    static final int EROFS = 30;
    static final int ENOTEMPTY = 39;
    static final int ELOOP = 40;
    static final int ENODATA = 61;
    static final int ESTALE = 116;
    static final int EDQUOT = 122;

    /** Why a native call failed. */
    static final class Failure {
        final int errno;
        final String cause;
        final String next;

        Failure(int errno, String cause, String next) {
            this.errno = errno;
            this.cause = cause;
            this.next = next;
        }

        boolean is(int number) {
            return errno == number;
        }

        boolean isAnyOf(int... numbers) {
            for (int number : numbers) {
                if (errno == number) {
                    return true;
                }
            }
            return false;
        }

        String text(Object path) {
            return path + ": " + cause + "; " + next;
        }

        /** The exception for it. */
        IOException of(Path path) {
            String text = text(path);
            switch (errno) {
                case ENOENT:
                case EISDIR:
                case ELOOP:
                    return new FileNotFoundException(text);
                case EEXIST:
                    return new FileAlreadyExistsException(text);
                case ENOTDIR:
                    return new ParentNotDirectoryException(text);
                case ENOTEMPTY:
                    IOException notEmpty = new PathIsNotEmptyDirectoryException(path.toString());
                    notEmpty.initCause(new IOException(text));
                    return notEmpty;
                case EACCES:
                case EPERM:
                case EROFS:
                    return new AccessControlException(text);
                case ENOSPC:
                case EDQUOT:
                    return new DiskOutOfSpaceException(text);
                default:
                    return new PathIOException(path.toString(), cause + "; " + next);
            }
        }
    }

    private Errors() {
    }

    /** Of the call that this thread made last. */
    static Failure last() {
        byte[] told = Native.lastError();
        if (told == null) {
            return new Failure(5, "the cause could not be told", "look at the memory of the process");
        }
        int errno = ByteBuffer.wrap(told).order(ByteOrder.LITTLE_ENDIAN).getInt();
        String[] parts = new String(told, 4, told.length - 4, StandardCharsets.UTF_8).split("\0", -1);
        return new Failure(errno, parts.length > 1 ? parts[1] : "it failed", parts.length > 2 ? parts[2] : "try again");
    }

    static IOException of(Path path) {
        return last().of(path);
    }

    static int check(int outcome, Path path) throws IOException {
        if (outcome < 0) {
            throw of(path);
        }
        return outcome;
    }

    static long check(long outcome, Path path) throws IOException {
        if (outcome < 0) {
            throw of(path);
        }
        return outcome;
    }

    static byte[] check(byte[] outcome, Path path) throws IOException {
        if (outcome == null) {
            throw of(path);
        }
        return outcome;
    }
}
