import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.functions;

/** Writes a table as parquet in parts, reads it back, joins and sums it, and writes the outcome as CSV: numbers are known beforehand. */
public final class SparkJob {
    private static final long ROWS = 300_000;

    private SparkJob() {
    }

    public static void main(String[] arguments) {
        String base = arguments[0];
        SparkSession spark = SparkSession.builder().appName("cairn").getOrCreate();
        Dataset<Row> numbers = spark.range(ROWS).withColumn("key", functions.col("id").mod(7));
        numbers.write().mode("overwrite").partitionBy("key").parquet(base + "/numbers");
        Dataset<Row> read = spark.read().parquet(base + "/numbers");
        Dataset<Row> sums = read.groupBy("key").agg(functions.sum("id").as("sum"), functions.count("id").as("count"));
        sums.orderBy("key").coalesce(1).write().mode("overwrite").option("header", true).csv(base + "/sums");
        Row all = spark.read().option("header", true).option("inferSchema", true).csv(base + "/sums")
                .agg(functions.sum("sum"), functions.sum("count")).head();
        long sum = all.getLong(0);
        long count = all.getLong(1);
        spark.stop();
        if (count != ROWS || sum != ROWS * (ROWS - 1) / 2) {
            throw new IllegalStateException("the sums are wrong: " + all);
        }
        System.out.println("spark: " + count + " rows, " + sum);
    }
}
