import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.net.URI;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * A client of one Hadoop file system that works on demand: a line of standard input is a piece of work, a line of standard output says how long it took, in
 * seconds, and how much of this process's CPU. The virtual machine stays, so its compiler warms up as in a long job.
 *
 * <p>{@code write DIRECTORY STREAMS BYTES}, {@code read DIRECTORY STREAMS BYTES}, {@code create|stat|rename|delete DIRECTORY THREADS FILES},
 * {@code list DIRECTORY TIMES}.
 */
public final class Beside {
    private static final int BUFFER = 1 << 20;

    private final FileSystem fs;

    private Beside(FileSystem fs) {
        this.fs = fs;
    }

    public static void main(String[] arguments) throws Exception {
        Beside beside = new Beside(FileSystem.get(new URI(arguments[0]), new Configuration()));
        OperatingSystemMXBean system = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready");
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] words = line.split(" ");
            long cpu = system.getProcessCpuTime();
            long began = System.nanoTime();
            beside.work(words);
            double took = (System.nanoTime() - began) / 1e9;
            System.out.println(took + " " + (system.getProcessCpuTime() - cpu) / 1e9);
        }
        beside.fs.close();
    }

    private void work(String[] words) throws Exception {
        Path directory = new Path(words[1]);
        int threads = Integer.parseInt(words[2]);
        if (words[0].equals("list")) {
            for (int i = 0; i < threads; i++) {
                fs.listStatus(directory);
            }
            return;
        }
        long amount = Long.parseLong(words[3]);
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        try {
            List<Future<Void>> all = new ArrayList<>();
            for (int i = 0; i < threads; i++) {
                int thread = i;
                Callable<Void> task = () -> {
                    one(words[0], directory, thread, amount);
                    return null;
                };
                all.add(pool.submit(task));
            }
            for (Future<Void> each : all) {
                each.get();
            }
        } finally {
            pool.shutdown();
        }
    }

    /** What one thread does; {@code amount}: bytes of its file, or its files. */
    private void one(String what, Path directory, int thread, long amount) throws IOException {
        Path stream = new Path(directory, "stream" + thread);
        switch (what) {
            case "write":
                write(stream, amount);
                return;
            case "read":
                read(stream, amount);
                return;
            default:
                // A directory for each thread: what is measured is the server, not one directory's lock.
                Path own = new Path(directory, "thread" + thread);
                for (long file = 0; file < amount; file++) {
                    name(what, new Path(own, "file" + file));
                }
        }
    }

    private void name(String what, Path file) throws IOException {
        boolean done = true;
        switch (what) {
            case "create":
                fs.create(file, false).close();
                break;
            case "stat":
                fs.getFileStatus(file);
                break;
            case "rename":
                done = fs.rename(file, file.suffix("-renamed"));
                break;
            case "delete":
                done = fs.delete(file.suffix("-renamed"), false);
                break;
            default:
                throw new IOException("no such work: " + what);
        }
        if (!done) {
            throw new IOException(what + " of " + file + " was refused");
        }
    }

    private void write(Path file, long bytes) throws IOException {
        byte[] buffer = new byte[BUFFER];
        try (FSDataOutputStream out = fs.create(file, true)) {
            for (long at = 0; at < bytes; at += BUFFER) {
                stamp(buffer, at);
                out.write(buffer, 0, (int) Math.min(BUFFER, bytes - at));
            }
        }
    }

    private void read(Path file, long bytes) throws IOException {
        byte[] buffer = new byte[BUFFER];
        byte[] wanted = new byte[BUFFER];
        try (FSDataInputStream in = fs.open(file)) {
            for (long at = 0; at < bytes; at += BUFFER) {
                int length = (int) Math.min(BUFFER, bytes - at);
                in.readFully(buffer, 0, length);
                stamp(wanted, at);
                if (buffer[0] != wanted[0] || buffer[length - 1] != wanted[length - 1]) {
                    throw new IOException(file + " has other bytes at " + at);
                }
            }
        }
    }

    /** Each buffer differs from the one before. */
    private static void stamp(byte[] buffer, long at) {
        byte mark = (byte) (at / BUFFER + 1);
        for (int i = 0; i < BUFFER; i += 512) {
            buffer[i] = mark;
        }
        buffer[BUFFER - 1] = mark;
    }
}
