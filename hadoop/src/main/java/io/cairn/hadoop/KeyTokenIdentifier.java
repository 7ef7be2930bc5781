package io.cairn.hadoop;

import org.apache.hadoop.io.Text;
import org.apache.hadoop.security.token.delegation.AbstractDelegationTokenIdentifier;

/** What a token that carries a key says of it: its holder's name (the owner), when it was made and when it ends. The key is in the password, which {@code dtutil print} shows in its last column. */
public final class KeyTokenIdentifier extends AbstractDelegationTokenIdentifier {
    public static final Text KIND = new Text("CAIRN_KEY");

    /** For Hadoop, which reads it. */
    public KeyTokenIdentifier() {
    }

    KeyTokenIdentifier(String name, String renewer, long madeMs, long untilMs) {
        super(new Text(name), renewer == null ? null : new Text(renewer), null);
        setIssueDate(madeMs);
        setMaxDate(untilMs);
    }

    @Override
    public Text getKind() {
        return KIND;
    }
}
