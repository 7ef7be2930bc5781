package io.cairn.hadoop;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNotSame;
import static org.junit.Assert.assertTrue;
import static org.junit.Assert.fail;

import io.cairn.hadoop.contract.CairnContract;
import java.io.File;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.lang.reflect.Method;
import java.net.URL;
import java.net.URLClassLoader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.BlockLocation;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileContext;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.LeaseRecoverable;
import org.apache.hadoop.fs.ParentNotDirectoryException;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.permission.AclEntry;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.security.AccessControlException;
import org.junit.After;
import org.junit.Before;
import org.junit.Test;

/** What Hadoop's suites do not ask for: copies over the border, threads, errors, volumes, places, ACLs, what is left behind. */
public class Behaviour {
    private static final Path DIR = new Path("/default/behaviour");
    private FileSystem fs;

    @Before
    public void connect() throws IOException {
        fs = another();
        fs.delete(DIR, true);
        fs.mkdirs(DIR);
    }

    @After
    public void leave() throws IOException {
        fs.close();
    }

    private static FileSystem another() throws IOException {
        return FileSystem.newInstance(CairnContract.uri(true), CairnContract.conf(new Configuration(), true));
    }

    private static byte[] bytes(int length) {
        byte[] bytes = new byte[length];
        new Random(length).nextBytes(bytes);
        return bytes;
    }

    private void write(Path path, byte[] bytes) throws IOException {
        try (FSDataOutputStream out = fs.create(path)) {
            out.write(bytes);
        }
    }

    private static long[] copies() {
        ByteBuffer from = Record.of(Native.copies());
        return new long[] {from.getLong(), from.getLong(), from.getLong()};
    }

    /** Data would be copied twice on its way, or not be counted. */
    @Test
    public void largeReadsAndWritesAreCopiedOnce() throws IOException {
        Path path = new Path(DIR, "large");
        byte[] data = bytes(9 << 20);
        long[] before = copies();
        write(path, data);
        byte[] heap = new byte[data.length];
        ByteBuffer direct = ByteBuffer.allocateDirect(data.length);
        try (FSDataInputStream in = fs.open(path)) {
            in.readFully(0, heap);
            assertEquals(data.length, in.read(0, direct));
        }
        direct.flip();
        byte[] back = new byte[data.length];
        direct.get(back);
        assertArrayEquals(data, heap);
        assertArrayEquals(data, back);
        long[] after = copies();
        long over = after[0] - before[0] + after[1] - before[1];
        assertEquals("read and written", 3L * data.length, over);
        assertEquals("copied", over, after[2] - before[2]);
    }

    /** A person would not know what is wrong, or a program catch the wrong class. */
    @Test
    public void errorsSayPathCauseAndNextStep() throws IOException {
        Path missing = new Path(DIR, "missing");
        try {
            fs.open(missing);
            fail("it was opened");
        } catch (FileNotFoundException e) {
            assertTrue(e.getMessage(), e.getMessage().contains(missing.toString()) && e.getMessage().contains("; "));
        }
        try {
            fs.mkdirs(new Path("/"), FsPermission.getDirDefault());
            fs.create(new Path("/file")).close();
            fail("a file was made beside volumes");
        } catch (FileNotFoundException | AccessControlException e) {
            assertTrue(e.getMessage(), e.getMessage().contains("; "));
        } catch (IOException e) {
            assertTrue(e.getMessage(), e.getMessage().contains("directory; name a file in it") || e.getMessage().contains("; "));
        }
        try {
            fs.setOwner(DIR, "no such user", null);
            fail("it was given to nobody");
        } catch (IOException e) {
            assertTrue(e.getMessage(), e.getMessage().contains("no such user") && e.getMessage().contains("; "));
        }
    }

    /** A defect in the library would end the virtual machine. */
    @Test
    public void aPanicIsAnError() {
        assertEquals(-1, Native.panic());
        Errors.Failure failure = Errors.last();
        assertTrue(failure.cause, failure.is(5) && failure.cause.contains("asked for"));
    }

    /** Memory of something else would be read, or the machine end, when a thread closes what another one reads. */
    @Test
    public void closingWhileOthersReadIsAnError() throws Exception {
        Path path = new Path(DIR, "shared");
        byte[] data = bytes(3 << 20);
        write(path, data);
        for (int round = 0; round < 20; round++) {
            FSDataInputStream in = fs.open(path);
            AtomicReference<Throwable> wrong = new AtomicReference<>();
            AtomicInteger reads = new AtomicInteger();
            List<Thread> threads = new ArrayList<>();
            for (int number = 0; number < 4; number++) {
                int at = number * 100_000;
                Thread thread = new Thread(() -> {
                    byte[] part = new byte[70_000];
                    try {
                        while (true) {
                            in.readFully(at, part);
                            reads.incrementAndGet();
                            if (!Arrays.equals(part, Arrays.copyOfRange(data, at, at + part.length))) {
                                wrong.set(new AssertionError("other bytes"));
                                return;
                            }
                        }
                    } catch (IOException e) {
                        // It was closed.
                        if (e.getMessage() == null || !e.getMessage().contains("closed")) {
                            wrong.set(e);
                        }
                    }
                });
                threads.add(thread);
                thread.start();
            }
            while (reads.get() < 4 && wrong.get() == null) {
                Thread.sleep(1);
            }
            in.close();
            for (Thread thread : threads) {
                thread.join();
            }
            if (wrong.get() != null) {
                throw new AssertionError(wrong.get());
            }
        }
    }

    /** A job that is cancelled would leave half a call: a file that stays open, bytes that nobody finds. */
    @Test
    public void interruptedThreadsLeaveNothing() throws Exception {
        Path path = new Path(DIR, "interrupted");
        byte[] part = bytes(1 << 20);
        AtomicInteger whole = new AtomicInteger();
        AtomicReference<Throwable> wrong = new AtomicReference<>();
        Thread thread = new Thread(() -> {
            try (FSDataOutputStream out = fs.create(path)) {
                while (!Thread.currentThread().isInterrupted()) {
                    out.write(part);
                    whole.incrementAndGet();
                }
            } catch (Throwable e) {
                wrong.set(e);
            }
        });
        thread.start();
        while (whole.get() < 3 && thread.isAlive()) {
            Thread.sleep(1);
        }
        thread.interrupt();
        thread.join();
        if (wrong.get() != null) {
            throw new AssertionError(wrong.get());
        }
        assertEquals((long) whole.get() * part.length, fs.getFileStatus(path).getLen());
        assertTrue(fs.delete(path, false));
    }

    /** The same in the midst of calls: whatever they do then, it ends, and with it what they have open. */
    @Test
    public void callsOfInterruptedThreadsEnd() throws Exception {
        Path[] paths = new Path[6];
        Thread[] busy = new Thread[paths.length];
        AtomicInteger calls = new AtomicInteger();
        AtomicReference<Throwable> wrong = new AtomicReference<>();
        write(new Path(DIR, "first"), bytes(1));
        int before = threads();
        for (int i = 0; i < paths.length; i++) {
            Path path = new Path(DIR, "busy" + i);
            paths[i] = path;
            busy[i] = new Thread(() -> {
                byte[] part = bytes(50_000);
                long length = 0;
                try (FSDataOutputStream out = fs.create(path)) {
                    while (!Thread.currentThread().isInterrupted()) {
                        out.write(part);
                        out.hflush();
                        length += part.length;
                        try (FSDataInputStream in = fs.open(path)) {
                            in.readFully(length - part.length, part);
                        }
                        fs.listStatus(DIR);
                        calls.incrementAndGet();
                    }
                } catch (Throwable e) {
                    wrong.set(e);
                }
            });
            busy[i].start();
        }
        while (calls.get() < 3 * paths.length && wrong.get() == null) {
            Thread.sleep(1);
        }
        for (int i = 0; i < busy.length; i++) {
            Thread.sleep(3L * i);
            busy[i].interrupt();
        }
        for (Thread thread : busy) {
            thread.join();
        }
        if (wrong.get() != null) {
            throw new AssertionError(wrong.get());
        }
        // The virtual machine has threads of its own that come and go.
        assertTrue(before + " threads before, " + threads() + " after", threads() < before + paths.length);
        for (Path path : paths) {
            assertTrue("it is open", ((LeaseRecoverable) fs).isFileClosed(path));
            assertEquals(0, fs.getFileStatus(path).getLen() % 50_000);
        }
    }

    /** Others would not see what a log's writer has flushed, or see it only when the file is closed. */
    @Test
    public void whatIsFlushedIsSeenByOthers() throws IOException {
        Path path = new Path(DIR, "log");
        try (FileSystem other = another(); FSDataOutputStream out = fs.create(path)) {
            out.write("one\n".getBytes(StandardCharsets.UTF_8));
            out.hflush();
            assertEquals(4, other.getFileStatus(path).getLen());
            out.write("two\n".getBytes(StandardCharsets.UTF_8));
            out.hsync();
            byte[] seen = new byte[8];
            try (FSDataInputStream in = other.open(path)) {
                in.readFully(0, seen);
            }
            assertEquals("one\ntwo\n", new String(seen, StandardCharsets.UTF_8));
            try (FSDataOutputStream more = other.append(path)) {
                assertEquals(8, more.getPos());
                more.write("three\n".getBytes(StandardCharsets.UTF_8));
            }
        }
        assertEquals(14, fs.getFileStatus(path).getLen());
    }

    private byte[] read(Path path) throws IOException {
        byte[] all = new byte[(int) fs.getFileStatus(path).getLen()];
        try (FSDataInputStream in = fs.open(path)) {
            in.readFully(0, all);
        }
        return all;
    }

    private interface Call {
        void run() throws IOException;
    }

    private static void refused(String what, String why, Call call) {
        try {
            call.run();
        } catch (IOException e) {
            assertTrue(e.getMessage(), e.getMessage().contains(why) && e.getMessage().contains("; "));
            return;
        }
        fail(what + " was acknowledged");
    }

    /** Two jobs that make the same file would write into one; a reader of the old file would find it cut; what is to be private would be read by others. */
    @Test
    public void whatIsMadeAnewIsAnotherFile() throws IOException {
        Path path = new Path(DIR, "anew");
        try (FileSystem other = another()) {
            FSDataOutputStream first = other.create(path);
            first.write(bytes(300));
            first.hflush();
            write(path, bytes(200));
            first.write(bytes(300));
            refused("what nobody will see", "removed or replaced", first::hflush);
            refused("what nobody will see", "removed or replaced", first::close);
            assertArrayEquals(bytes(200), read(path));
            try (FSDataInputStream in = other.open(path)) {
                fs.setXAttr(path, "user.old", new byte[] {1});
                fs.setAcl(path, AclEntry.parseAclSpec("user::rw-,user:daemon:rwx,group::r--,other::r--", true));
                try (FSDataOutputStream out = fs.create(path, new FsPermission((short) 0600), true, 4096, (short) 3, 1 << 20, null)) {
                    out.write(1);
                }
                assertEquals("rw-------", fs.getFileStatus(path).getPermission().toString());
                assertEquals("[]", fs.getAclStatus(path).getEntries().toString());
                assertEquals("[]", fs.listXAttrs(path).toString());
                byte[] old = new byte[200];
                in.readFully(0, old);
                assertArrayEquals("who has the old file open reads it", bytes(200), old);
            }
            try (FSDataOutputStream none = fs.create(new Path(path, "below"), true)) {
                fail("a file was made below a file");
            } catch (ParentNotDirectoryException e) {
                assertTrue(e.getMessage(), e.getMessage().contains("; "));
            }
        }
    }

    /** A job whose directory was removed would be told that its output is there. */
    @Test
    public void whoWritesWhatWasRemovedIsTold() throws IOException {
        Path path = new Path(DIR, "removed");
        try (FileSystem other = another()) {
            FSDataOutputStream out = other.create(path);
            out.write(bytes(100));
            out.hflush();
            assertTrue(fs.delete(path, false));
            out.write(bytes(100));
            refused("what was removed", "removed or replaced", out::close);
            FSDataOutputStream published = other.create(path);
            published.write(bytes(100));
            assertTrue(fs.delete(path, false));
            refused("what was removed", "removed or replaced", published::close);
        }
    }

    /** What was acknowledged to the writer of a file that is joined with others would be in neither. */
    @Test
    public void joiningShutsWritersOut() throws IOException {
        int[] sizes = {5, 300_000};
        for (int size : sizes) {
            Path target = new Path(DIR, "target" + size);
            Path source = new Path(DIR, "source" + size);
            try (FileSystem other = another()) {
                FSDataOutputStream first = other.create(target);
                first.write(bytes(size));
                first.hflush();
                FSDataOutputStream second = other.create(source);
                second.write(bytes(size + 1));
                second.hflush();
                second.write(1);
                fs.concat(target, new Path[] {source});
                first.write(1);
                refused("what the target lacks", "; ", first::hflush);
                refused("what the target lacks", "; ", second::hflush);
                refused("what the target lacks", "; ", first::close);
                refused("what the target lacks", "; ", second::close);
            }
            byte[] expected = Arrays.copyOf(bytes(size), 2 * size + 1);
            System.arraycopy(bytes(size + 1), 0, expected, size, size + 1);
            assertArrayEquals(expected, read(target));
            assertFalse(fs.exists(source));
            try (FSDataOutputStream more = fs.append(target)) {
                more.write(1);
            }
            assertEquals("of the joined file nobody is shut out", 2 * size + 2, fs.getFileStatus(target).getLen());
            assertEquals("[]", fs.listXAttrs(target).toString());
        }
    }

    private static int threads() {
        return new File("/proc/self/task").list().length;
    }

    /** A daemon that makes a context for each job would run out of threads, and the servers hold a session for each. */
    @Test
    public void contextsShareTheirConnection() throws Exception {
        Configuration conf = CairnContract.conf(new Configuration(), true);
        FileContext.getFileContext(CairnContract.uri(true), conf).getFileStatus(DIR);
        int before = threads();
        for (int i = 0; i < 20; i++) {
            FileContext.getFileContext(CairnContract.uri(true), conf).getFileStatus(DIR);
        }
        assertTrue(before + " threads before, " + threads() + " after 20 contexts", threads() < before + 10);
        Configuration reader = new Configuration(conf);
        reader.setBoolean(CairnFileSystem.READ_ONLY, true);
        FileContext readOnly = FileContext.getFileContext(CairnContract.uri(true), reader);
        try {
            readOnly.mkdir(new Path(DIR, "read-only"), FsPermission.getDirDefault(), false);
            fail("it has the connection of one that may write");
        } catch (AccessControlException e) {
            assertTrue(e.getMessage(), e.getMessage().contains("; "));
        }
    }

    /** KiB of this process beside the heap of Java, which grows and shrinks as it likes. */
    private static long memory() throws IOException {
        for (String line : Files.readAllLines(Paths.get("/proc/self/status"))) {
            if (line.startsWith("VmRSS")) {
                return Long.parseLong(line.replaceAll("[^0-9]", "")) - (Runtime.getRuntime().totalMemory() >> 10);
            }
        }
        throw new IOException("VmRSS is not told");
    }

    /** A program that asks whether a directory has entries, and goes on, would grow with each. */
    @Test
    public void listingsThatAreLeftTakeNothing() throws IOException {
        Path many = new Path(DIR, "many");
        fs.mkdirs(many);
        for (int i = 0; i < 300; i++) {
            fs.mkdirs(new Path(many, "a-rather-long-name-of-a-directory-" + i));
        }
        for (int i = 0; i < 200; i++) {
            assertTrue(fs.listStatusIterator(many).hasNext());
        }
        System.gc();
        long before = memory();
        for (int i = 0; i < 2000; i++) {
            assertTrue(fs.listStatusIterator(many).hasNext());
        }
        System.gc();
        // Kept they would be some 140 MB.
        assertTrue(before + " KiB before, " + memory() + " after", memory() < before + (60 << 10));
        assertEquals(300, fs.listStatus(many).length);
    }

    /** A program that forgets to close what it read would hold all of it, here and at the servers. */
    @Test
    public void streamsThatAreForgottenAreClosed() throws Exception {
        Path path = new Path(DIR, "forgotten");
        write(path, bytes(100));
        for (int i = 0; i < 50; i++) {
            assertTrue(fs.open(path).read() >= 0);
        }
        int left = Integer.MAX_VALUE;
        for (int i = 0; i < 100 && left > 25; i++) {
            System.gc();
            Thread.sleep(20);
            fs.open(path).close();
            left = Leftovers.count();
        }
        assertTrue(left + " are open", left <= 25);
    }

    /** distcp would copy empty files again each time: HDFS has a sum of its own for them. */
    @Test
    public void emptyFilesHaveTheSumOfHdfs() throws IOException {
        Path path = new Path(DIR, "empty");
        write(path, new byte[0]);
        Configuration conf = CairnContract.conf(new Configuration(), true);
        conf.set("dfs.checksum.combine.mode", "COMPOSITE_CRC");
        try (FileSystem summing = FileSystem.newInstance(CairnContract.uri(true), conf)) {
            assertEquals("MD5-of-0MD5-of-0CRC32:70bc8f4b72a86921468bf8e8441dce51", summing.getFileChecksum(path).toString());
            write(path, "123456789".getBytes(StandardCharsets.UTF_8));
            assertEquals("COMPOSITE-CRC32C:0xe3069283", summing.getFileChecksum(path).toString());
        }
    }

    /** What a program wrote last would be lost when it ends without closing its files. */
    @Test
    public void closingTheFileSystemWritesEverythingOut() throws IOException {
        Path path = new Path(DIR, "left-open");
        FileSystem other = another();
        FSDataOutputStream out = other.create(path);
        out.write(bytes(1000));
        FSDataInputStream in = other.open(path);
        other.close();
        assertEquals(1000, fs.getFileStatus(path).getLen());
        out.close();
        in.close();
        try {
            other.getFileStatus(path);
            fail("it is still open");
        } catch (IOException e) {
            assertTrue(e.getMessage(), e.getMessage().contains("Filesystem closed"));
        }
    }

    /** Volumes would not be found, or trees be moved from one to another by halves. */
    @Test
    public void volumesAreTheFirstNames() throws IOException {
        boolean found = false;
        for (FileStatus volume : fs.listStatus(new Path("/"))) {
            found |= volume.getPath().getName().equals("default") && volume.isDirectory();
        }
        assertTrue("the volume default is listed", found);
        assertTrue(fs.getFileStatus(new Path("/")).isDirectory());
        assertFalse(fs.rename(new Path("/default"), new Path("/renamed")));
        assertFalse(fs.delete(new Path("/default"), true));
        try {
            fs.mkdirs(new Path("/no-such-volume/directory"));
            fail("it was made");
        } catch (IOException e) {
            assertTrue(e.getMessage(), e.getMessage().contains("no-such-volume"));
        }
        try (FileSystem one = FileSystem.newInstance(CairnContract.uri(false), new Configuration())) {
            assertTrue(one.getFileStatus(new Path("/behaviour")).isDirectory());
        }
        assertEquals("/default/user/" + System.getProperty("user.name") + "/.Trash", fs.getTrashRoot(DIR).toUri().getPath());
    }

    /** A scheduler would not know where to run, or fail on a part that is nowhere. */
    @Test
    public void placesCoverTheFile() throws IOException {
        Path path = new Path(DIR, "placed");
        write(path, bytes(5 << 20));
        FileStatus status = fs.getFileStatus(path);
        long at = 0;
        for (BlockLocation place : fs.getFileBlockLocations(status, 0, Long.MAX_VALUE)) {
            assertEquals(at, place.getOffset());
            assertEquals(3, place.getHosts().length);
            assertTrue(place.getTopologyPaths()[0], place.getTopologyPaths()[0].startsWith("/rack"));
            at += place.getLength();
        }
        assertEquals(status.getLen(), at);
        assertEquals(3, status.getReplication());
        // A hole is nowhere, and still a part.
        List<BlockLocation> around = Arrays.asList(BlockPlaces.cover(new ArrayList<>(), 10, 20));
        assertEquals(1, around.size());
        assertEquals(20, around.get(0).getLength());
    }

    /** Access lists would be lost, or say something else than they were told. */
    @Test
    public void accessListsAreKept() throws IOException {
        Path path = new Path(DIR, "listed");
        fs.mkdirs(path, new FsPermission((short) 0750));
        assertFalse(fs.getFileStatus(path).hasAcl());
        fs.modifyAclEntries(path, AclEntry.parseAclSpec("user:daemon:rw-,group:daemon:r-x", true));
        assertEquals("[user:daemon:rw-, group::r-x, group:daemon:r-x]", fs.getAclStatus(path).getEntries().toString());
        assertEquals("rwxrwx---", fs.getFileStatus(path).getPermission().toString());
        assertTrue(fs.getFileStatus(path).hasAcl());
        fs.modifyAclEntries(path, AclEntry.parseAclSpec("default:user:daemon:rwx", true));
        Path below = new Path(path, "below");
        write(below, bytes(1));
        assertTrue(fs.getFileStatus(below).hasAcl());
        fs.removeAclEntries(path, AclEntry.parseAclSpec("user:daemon", false));
        assertEquals("[group::r-x, group:daemon:r-x, default:user::rwx, default:user:daemon:rwx, default:group::r-x, "
                + "default:mask::rwx, default:other::---]", fs.getAclStatus(path).getEntries().toString());
        fs.removeAcl(path);
        assertEquals("[]", fs.getAclStatus(path).getEntries().toString());
        assertEquals("rwxr-x---", fs.getFileStatus(path).getPermission().toString());
        fs.setAcl(below, AclEntry.parseAclSpec("user::rw-,user:daemon:r--,group::r--,other::---", true));
        assertEquals("[user:daemon:r--, group::r--]", fs.getAclStatus(below).getEntries().toString());
    }

    /** A container with several class loaders could use the file system in one of them only. */
    @Test
    public void twoClassLoadersHaveALibraryEach() throws Exception {
        URL jar = CairnFileSystem.class.getProtectionDomain().getCodeSource().getLocation();
        URL[] own = {jar};
        Method[] versions = new Method[2];
        for (int i = 0; i < versions.length; i++) {
            ClassLoader loader = new URLClassLoader(own, ClassLoader.getSystemClassLoader().getParent());
            Class<?> natives = Class.forName("io.cairn.hadoop.Native", true, loader);
            versions[i] = natives.getDeclaredMethod("version");
            versions[i].setAccessible(true);
        }
        assertNotSame(versions[0].getDeclaringClass(), versions[1].getDeclaringClass());
        assertArrayEquals((byte[]) versions[0].invoke(null), (byte[]) versions[1].invoke(null));
        String[] left = new File(System.getProperty("java.io.tmpdir")).list((dir, name) -> name.startsWith("cairn-jni-"));
        assertEquals("what was extracted is gone again: " + Arrays.toString(left), 0, left == null ? 0 : left.length);
    }
}
