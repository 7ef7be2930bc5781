package io.cairn.hadoop;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;
import static org.junit.Assert.fail;

import io.cairn.hadoop.contract.CairnContract;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.CommonPathCapabilities;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.LeaseRecoverable;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.StreamCapabilities;
import org.junit.After;
import org.junit.Before;
import org.junit.Test;

/** Lease recovery as write-ahead logs need it: two programs, of which one takes a file over from the other, which still lives. */
public class Recovery {
    private static final Path DIR = new Path("/default/recovery");
    private static final int RECORD = 100;
    private static final long PATIENCE_MS = 60_000;
    /** After this the library has written out by itself what was handed to it. */
    private static final long BEHIND_MS = 7_000;
    private FileSystem writer;
    private FileSystem heir;

    @Before
    public void connect() throws IOException {
        writer = another();
        heir = another();
        heir.delete(DIR, true);
        heir.mkdirs(DIR);
    }

    @After
    public void leave() throws IOException {
        heir.close();
        writer.close();
    }

    private static FileSystem another() throws IOException {
        return FileSystem.newInstance(CairnContract.uri(true), CairnContract.conf(new Configuration(), true));
    }

    private byte[] read(Path path) throws IOException {
        byte[] all = new byte[(int) heir.getFileStatus(path).getLen()];
        try (FSDataInputStream in = heir.open(path)) {
            in.readFully(0, all);
        }
        return all;
    }

    private static void recover(FileSystem fs, Path path) throws IOException {
        assertTrue("it is to be waited for", ((LeaseRecoverable) fs).recoverLease(path));
        assertTrue("it is open", ((LeaseRecoverable) fs).isFileClosed(path));
    }

    private interface Call {
        void run() throws IOException;
    }

    private static void refused(String what, Call call) {
        try {
            call.run();
        } catch (IOException e) {
            assertTrue(e.getMessage(), e.getMessage().contains("recovered the file") && e.getMessage().contains("; "));
            return;
        }
        fail(what + " was not refused");
    }

    /** A program that looks for lease recovery, or for streams that can be flushed, would do without. */
    @Test
    public void capabilitiesAreTold() throws IOException {
        assertTrue(writer.getClass().toString(), writer instanceof LeaseRecoverable);
        assertTrue(writer.hasPathCapability(DIR, CommonPathCapabilities.LEASE_RECOVERABLE));
        assertFalse(writer.hasPathCapability(DIR, CommonPathCapabilities.FS_SNAPSHOTS));
        try (FSDataOutputStream out = writer.create(new Path(DIR, "capable"))) {
            assertTrue(out.hasCapability(StreamCapabilities.HFLUSH) && out.hasCapability(StreamCapabilities.HSYNC));
            assertFalse(out.hasCapability(StreamCapabilities.DROPBEHIND));
        }
    }

    /** A region server that was given up would be told that its edits are kept, when others have read its log to the end. */
    @Test
    public void whatTheOldWriterWritesIsNotAcknowledged() throws IOException {
        Path path = new Path(DIR, "log");
        byte[] first = "before\n".getBytes(StandardCharsets.UTF_8);
        FSDataOutputStream out = writer.create(path);
        out.write(first);
        out.hflush();
        assertFalse("it is being written", ((LeaseRecoverable) writer).isFileClosed(path));
        // As HBase does: the directory gets another name first.
        Path moved = new Path("/default/recovery-splitting");
        heir.delete(moved, true);
        assertTrue(heir.rename(DIR, moved));
        recover(heir, new Path(moved, "log"));
        assertArrayEquals(first, read(new Path(moved, "log")));
        assertTrue("the mark is shown", heir.getXAttrs(new Path(moved, "log")).isEmpty());
        out.write("after\n".getBytes(StandardCharsets.UTF_8));
        refused("hflush", out::hflush);
        refused("hsync", out::hsync);
        refused("write", () -> out.write(1));
        refused("close", out::close);
        // Who opens it now goes on with it.
        byte[] there = read(new Path(moved, "log"));
        assertArrayEquals(first, Arrays.copyOf(there, first.length));
        try (FSDataOutputStream more = writer.append(new Path(moved, "log"))) {
            more.write(first);
            more.hsync();
            more.write(first);
        }
        assertEquals(there.length + 2 * first.length, heir.getFileStatus(new Path(moved, "log")).getLen());
        heir.delete(moved, true);
    }

    private static byte[] of(char letter, int length) {
        byte[] bytes = new byte[length];
        Arrays.fill(bytes, (byte) letter);
        return bytes;
    }

    private static byte[] joined(byte[] first, byte[] second) {
        byte[] all = Arrays.copyOf(first, first.length + second.length);
        System.arraycopy(second, 0, all, first.length, second.length);
        return all;
    }

    /**
     * Bytes of the one that goes on with a file, which were acknowledged, would be overwritten by those that the old writer still had: when he flushes
     * them, or without that some seconds later.
     */
    @Test
    public void nothingOfTheOldWriterComesLater() throws Exception {
        byte[] whole = joined(of('A', 100), of('C', 70));
        for (boolean appends : new boolean[] {false, true}) {
            Path[] paths = {new Path(DIR, "flushed" + appends), new Path(DIR, "idle" + appends), new Path(DIR, "same" + appends)};
            FSDataOutputStream[] old = new FSDataOutputStream[paths.length];
            for (int i = 0; i < paths.length; i++) {
                old[i] = writer.create(paths[i]);
                if (appends) {
                    old[i].close();
                    old[i] = writer.append(paths[i]);
                }
                old[i].write(of('A', 100));
                old[i].hflush();
                old[i].write(of('B', 50));
                // To the library.
                old[i].flush();
                FileSystem next = i == 2 ? writer : heir;
                recover(next, paths[i]);
                try (FSDataOutputStream more = next.append(paths[i])) {
                    more.write(of('C', 70));
                    more.hsync();
                }
                assertArrayEquals(paths[i] + " when the heir has closed it", whole, read(paths[i]));
            }
            refused("hflush", old[0]::hflush);
            Thread.sleep(BEHIND_MS);
            for (int i = 0; i < paths.length; i++) {
                assertArrayEquals(paths[i] + " some seconds later", whole, read(paths[i]));
                refused("close of " + paths[i], old[i]::close);
                assertArrayEquals(paths[i] + " at the end", whole, read(paths[i]));
            }
        }
    }

    /** The same where nothing was flushed before, and after an earlier recovery; whoever had nothing to write has lost nothing. */
    @Test
    public void closingIsRefusedToo() throws IOException {
        Path path = new Path(DIR, "closed");
        for (int round = 0; round < 3; round++) {
            FSDataOutputStream out = round == 2 ? writer.append(path) : writer.create(path, true);
            out.write(round);
            recover(heir, path);
            refused("close", out::close);
        }
        FSDataOutputStream idle = writer.append(path);
        recover(heir, path);
        idle.close();
        FSDataOutputStream own = heir.create(path, true);
        own.write(1);
        recover(heir, path);
        refused("close", own::close);
    }

    /** What a writer was told to be visible just before would not be there for the one that takes over. */
    @Test
    public void whatWasAcknowledgedIsThere() throws Exception {
        for (int round = 0; round < 20; round++) {
            Path path = new Path(DIR, "race" + round);
            AtomicInteger acknowledged = new AtomicInteger();
            AtomicReference<Throwable> end = new AtomicReference<>();
            AtomicBoolean over = new AtomicBoolean();
            FSDataOutputStream out = writer.create(path);
            Thread thread = new Thread(() -> {
                byte[] record = new byte[RECORD];
                try {
                    while (!over.get()) {
                        Arrays.fill(record, (byte) acknowledged.get());
                        out.write(record);
                        out.hflush();
                        acknowledged.incrementAndGet();
                    }
                } catch (Throwable e) {
                    end.set(e);
                }
            });
            thread.start();
            while (acknowledged.get() < 3 + round % 7) {
                thread.join(1);
                assertTrue("the writer ended: " + end.get(), thread.isAlive());
            }
            recover(heir, path);
            byte[] there = read(path);
            // One that is told everything for ever is not waited for.
            thread.join(PATIENCE_MS);
            over.set(true);
            thread.join();
            assertTrue(String.valueOf(end.get()), end.get() instanceof IOException && end.get().getMessage().contains("recovered the file"));
            assertTrue(acknowledged.get() + " were acknowledged, " + there.length + " bytes are there",
                    acknowledged.get() * RECORD <= there.length);
            for (int i = 0; i < acknowledged.get() * RECORD; i++) {
                assertEquals("byte " + i, (byte) (i / RECORD), there[i]);
            }
            refused("close", out::close);
        }
    }

    /** An old name, or a directory, would pass for a log that is whole. */
    @Test
    public void onlyFilesAreRecovered() throws IOException {
        for (Path path : new Path[] {DIR, new Path(DIR, "none")}) {
            for (Call call : new Call[] {() -> ((LeaseRecoverable) heir).recoverLease(path), () -> ((LeaseRecoverable) heir).isFileClosed(path)}) {
                try {
                    call.run();
                    fail(path + " was recovered");
                } catch (FileNotFoundException e) {
                    assertTrue(e.getMessage(), e.getMessage().contains(path.getName()));
                }
            }
        }
    }

    /** What was appended and acknowledged would be written over by a stream of the same process, without a word to either. */
    @Test
    public void nobodyAppendsBesideTheStreamThatMadeTheFile() throws IOException {
        Path made = new Path(DIR, "made");
        Path moved = new Path(DIR, "moved");
        byte[] bytes = "0123456789".getBytes(StandardCharsets.UTF_8);
        try (FSDataOutputStream out = writer.create(made)) {
            out.write(bytes);
            out.hflush();
            for (Path path : new Path[] {made, moved}) {
                try {
                    writer.append(path).close();
                    fail(path + " was appended to");
                } catch (IOException e) {
                    assertTrue(e.getMessage(), e.getMessage().contains("close that stream first"));
                }
                if (path == made) {
                    assertTrue(writer.rename(made, moved));
                }
            }
            // Another file has the name now.
            writer.create(made).close();
            writer.append(made).close();
            out.write(bytes);
        }
        try (FSDataOutputStream more = writer.append(moved)) {
            more.write(bytes);
        }
        assertEquals(3 * bytes.length, heir.getFileStatus(moved).getLen());
    }

    /** A program's own exception would be hidden by one that it was told already; or a failure that nobody was told be passed over. */
    @Test
    public void aFileSystemDoesNotThrowAgainWhatAStreamThrew() throws IOException {
        for (boolean told : new boolean[] {true, false}) {
            Path path = new Path(DIR, "told" + told);
            FileSystem closing = another();
            FSDataOutputStream out = closing.create(path);
            out.write(of('A', 100));
            out.hflush();
            recover(heir, path);
            out.write(of('B', 100));
            if (told) {
                refused("hflush", out::hflush);
                closing.close();
            } else {
                refused("the file system's close", closing::close);
            }
            assertEquals(100, heir.getFileStatus(path).getLen());
        }
    }
}
