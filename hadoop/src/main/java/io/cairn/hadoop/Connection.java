package io.cairn.hadoop;

import java.io.IOException;

/** A volume that is connected when it is first asked for; whoever asks meanwhile waits for the same attempt. */
final class Connection {
    private final Object connecting = new Object();
    /** 0: not yet. */
    private volatile long volume;
    private volatile boolean ended;
    /** Somebody disconnects it. */
    private boolean taken;

    /** How it is connected. */
    interface Connect {
        long call() throws IOException;
    }

    long get(Connect connect) throws IOException {
        long known = volume;
        if (known != 0) {
            return known;
        }
        synchronized (connecting) {
            if (volume == 0 && !ended) {
                volume = connect.call();
                if (ended && take() != 0) {
                    // Nobody waited for it: there is nothing in it that could fail to be written.
                    Native.disconnect(volume);
                }
            }
            return volume;
        }
    }

    /** The number of the volume, for whoever disconnects it; 0: it is not there, or is disconnected once it is. */
    long end() {
        ended = true;
        return take();
    }

    private synchronized long take() {
        if (volume == 0 || taken) {
            return 0;
        }
        taken = true;
        return volume;
    }
}
