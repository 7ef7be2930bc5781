import java.util.ArrayList;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hbase.HBaseConfiguration;
import org.apache.hadoop.hbase.TableName;
import org.apache.hadoop.hbase.client.Admin;
import org.apache.hadoop.hbase.client.ColumnFamilyDescriptorBuilder;
import org.apache.hadoop.hbase.client.Connection;
import org.apache.hadoop.hbase.client.ConnectionFactory;
import org.apache.hadoop.hbase.client.Put;
import org.apache.hadoop.hbase.client.Result;
import org.apache.hadoop.hbase.client.ResultScanner;
import org.apache.hadoop.hbase.client.Scan;
import org.apache.hadoop.hbase.client.Table;
import org.apache.hadoop.hbase.client.TableDescriptorBuilder;
import org.apache.hadoop.hbase.util.Bytes;

/**
 * Puts rows into a table of four regions, {@code HbaseJob ROWS}, says after each thousand how many are there, and reads all of them again. Whoever started it
 * kills a region server meanwhile: what a put has returned for is in that server's log, and has to be read from there.
 */
public final class HbaseJob {
    private static final byte[] FAMILY = Bytes.toBytes("f");
    private static final byte[] COLUMN = Bytes.toBytes("c");
    private static final int BATCH = 100;

    public static void main(String[] arguments) throws Exception {
        int rows = Integer.parseInt(arguments[0]);
        Configuration configuration = HBaseConfiguration.create();
        TableName name = TableName.valueOf("rows");
        try (Connection connection = ConnectionFactory.createConnection(configuration);
                Admin admin = connection.getAdmin()) {
            byte[][] splits = {key(rows / 4), key(rows / 2), key(rows / 4 * 3)};
            admin.createTable(
                    TableDescriptorBuilder.newBuilder(name)
                            .setColumnFamily(ColumnFamilyDescriptorBuilder.of(FAMILY))
                            .build(),
                    splits);
            long servers = connection.getRegionLocator(name).getAllRegionLocations().stream()
                    .map(location -> location.getServerName()).distinct().count();
            if (servers != 2) {
                throw new IllegalStateException("the regions are on " + servers + " servers, so killing one would not be noticed");
            }
            try (Table table = connection.getTable(name)) {
                write(admin, table, rows);
                read(table, rows);
            }
        }
    }

    private static void write(Admin admin, Table table, int rows) throws Exception {
        List<Put> batch = new ArrayList<>();
        for (int i = 0; i < rows; i++) {
            // All regions take their turn.
            int row = i % 4 * (rows / 4) + i / 4;
            batch.add(new Put(key(row)).addColumn(FAMILY, COLUMN, value(row)));
            if (batch.size() == BATCH) {
                table.put(batch);
                batch.clear();
            }
            if ((i + 1) % 1000 == 0) {
                System.out.println("put " + (i + 1));
            }
            // Some of the rows are in files, some in the log alone.
            if (i == rows / 3) {
                admin.flush(table.getName());
            }
        }
        table.put(batch);
    }

    private static void read(Table table, int rows) throws Exception {
        int found = 0;
        try (ResultScanner scanner = table.getScanner(new Scan().setCaching(1000))) {
            for (Result result : scanner) {
                if (!Bytes.equals(result.getRow(), key(found)) || !Bytes.equals(result.getValue(FAMILY, COLUMN), value(found))) {
                    throw new IllegalStateException("row " + found + " is " + result);
                }
                found++;
            }
        }
        if (found != rows) {
            throw new IllegalStateException(found + " rows of " + rows);
        }
        System.out.println("hbase: " + rows + " rows");
    }

    private static byte[] key(int row) {
        return Bytes.toBytes(String.format("%09d", row));
    }

    private static byte[] value(int row) {
        return Bytes.toBytes("value of " + row + " ".repeat(200));
    }
}
