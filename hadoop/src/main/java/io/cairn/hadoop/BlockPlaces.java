package io.cairn.hadoop;

import java.util.ArrayList;
import java.util.List;
import org.apache.hadoop.fs.BlockLocation;

/** Places of bytes as Hadoop's schedulers want them: one behind the other, without gaps. */
final class BlockPlaces {
    private BlockPlaces() {
    }

    static BlockLocation[] cover(List<Record.Place> places, long start, long length) {
        List<BlockLocation> all = new ArrayList<>();
        long at = start;
        long end = start + length;
        for (Record.Place place : places) {
            // A hole is nowhere.
            if (place.offset > at) {
                all.add(nowhere(at, Math.min(place.offset, end) - at));
            }
            long until = Math.min(place.offset + place.length, end);
            if (until > place.offset && place.offset < end) {
                all.add(at(place, until - place.offset));
            }
            at = Math.max(at, until);
        }
        if (at < end) {
            all.add(nowhere(at, end - at));
        }
        return all.toArray(new BlockLocation[0]);
    }

    private static BlockLocation nowhere(long offset, long length) {
        return new BlockLocation(new String[0], new String[0], new String[0], offset, length);
    }

    private static BlockLocation at(Record.Place place, long length) {
        String[] topology = new String[place.names.length];
        for (int i = 0; i < topology.length; i++) {
            String rack = place.racks[i].isEmpty() ? "default-rack" : place.racks[i];
            topology[i] = "/" + rack + "/" + place.addresses[i];
        }
        return new BlockLocation(place.addresses, place.names, topology, place.offset, length);
    }
}
