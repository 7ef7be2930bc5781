package io.cairn.hadoop.contract;

import io.cairn.hadoop.Behaviour;
import io.cairn.hadoop.Managers;
import io.cairn.hadoop.Recovery;
import io.cairn.hadoop.Tokens;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.junit.runner.Description;
import org.junit.runner.JUnitCore;
import org.junit.runner.Result;
import org.junit.runner.notification.Failure;
import org.junit.runner.notification.RunListener;

/**
 * Runs suites, of which the arguments name some, and says of each how many of its methods passed, failed and were skipped, because an option says
 * that the feature is not there. Ends with 1 if any failed or none ran.
 */
public final class RunSuites {
    private RunSuites() {
    }

    private static final class Skipped extends RunListener {
        private final List<String> all = new ArrayList<>();

        @Override
        public void testAssumptionFailure(Failure failure) {
            all.add(failure.getDescription().getMethodName() + ": " + failure.getMessage());
        }

        @Override
        public void testIgnored(Description description) {
            all.add(description.getMethodName() + ": ignored");
        }
    }

    public static void main(String[] names) {
        List<Class<?>> suites = new ArrayList<>(Arrays.asList(ContractSuites.ALL));
        suites.addAll(Arrays.asList(BaseSuites.ALL));
        suites.add(Behaviour.class);
        suites.add(Managers.class);
        suites.add(Recovery.class);
        suites.add(Tokens.class);
        List<String> wanted = Arrays.asList(names);
        int passed = 0;
        int failed = 0;
        int skipped = 0;
        int ran = 0;
        for (Class<?> suite : suites) {
            if (!wanted.isEmpty() && !wanted.contains(suite.getSimpleName())) {
                continue;
            }
            ran++;
            Skipped skips = new Skipped();
            JUnitCore runner = new JUnitCore();
            runner.addListener(skips);
            Result result = runner.run(suite);
            // One that is ignored does not count as run.
            int left = result.getRunCount() + result.getIgnoreCount() - result.getFailureCount() - skips.all.size();
            System.out.printf("%-24s %3d passed %3d failed %3d skipped  %6d ms%n", suite.getSimpleName(), left,
                    result.getFailureCount(), skips.all.size(), result.getRunTime());
            skips.all.forEach(skip -> System.out.println("    skipped " + skip));
            for (Failure failure : result.getFailures()) {
                System.out.println("    FAILED " + failure.getDescription() + "\n" + failure.getTrace());
            }
            passed += left;
            failed += result.getFailureCount();
            skipped += skips.all.size();
        }
        System.out.println("suites: " + ran + ", " + passed + " passed, " + failed + " failed, " + skipped + " skipped");
        System.exit(failed > 0 || passed == 0 || !wanted.isEmpty() && ran < wanted.size() ? 1 : 0);
    }
}
