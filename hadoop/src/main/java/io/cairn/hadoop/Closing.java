package io.cairn.hadoop;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;

/** Closes streams side by side: where no server answers, each takes as long as a call may. */
final class Closing {
    private static final int AT_ONCE = 32;

    private Closing() {
    }

    /** What failed and nobody was told yet, the others suppressed in the first; null: nothing. */
    static IOException all(Collection<CairnOutputStream> streams) {
        Queue<CairnOutputStream> waiting = new ConcurrentLinkedQueue<>(streams);
        Queue<IOException> errors = new ConcurrentLinkedQueue<>();
        Runnable closes = () -> {
            for (CairnOutputStream stream = waiting.poll(); stream != null; stream = waiting.poll()) {
                close(stream, errors);
            }
        };
        List<Thread> threads = new ArrayList<>();
        for (int more = Math.min(waiting.size(), AT_ONCE) - 1; more > 0; more--) {
            Thread thread = new Thread(closes, "cairn closes files");
            thread.setDaemon(true);
            thread.start();
            threads.add(thread);
        }
        closes.run();
        boolean interrupted = false;
        for (Thread thread : threads) {
            while (thread.isAlive()) {
                try {
                    thread.join();
                } catch (InterruptedException e) {
                    interrupted = true;
                }
            }
        }
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
        IOException first = errors.poll();
        if (first != null) {
            errors.forEach(first::addSuppressed);
        }
        return first;
    }

    private static void close(CairnOutputStream stream, Queue<IOException> errors) {
        // Its writer was told; whoever closes the file system in a finally block wants to see what was thrown first.
        boolean told = stream.isBroken();
        try {
            stream.close();
        } catch (IOException e) {
            if (!told) {
                errors.add(e);
            }
        }
    }
}
