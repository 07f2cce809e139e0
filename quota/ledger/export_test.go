package ledger

import (
	"context"
	"fmt"
)

// CheckVersion is checkVersion, for the versions that no build has.
func CheckVersion(version string) error { return checkVersion(version) }

// LimitPages lets the file grow to n pages and no further, like a full disk.
func (l *Ledger) LimitPages(ctx context.Context, n int) error {
	_, err := l.write.ExecContext(ctx, fmt.Sprintf("PRAGMA max_page_count=%d", n))
	return err
}

// ForbidWrites makes the writing connection find a file that can't be written.
func (l *Ledger) ForbidWrites(ctx context.Context) error {
	_, err := l.write.ExecContext(ctx, "PRAGMA query_only=1")
	return err
}

// Pragmas reads back how durable the writing connection is.
func (l *Ledger) Pragmas(ctx context.Context) (journal string, synchronous int, err error) {
	if err := l.write.QueryRowContext(ctx, "PRAGMA journal_mode").Scan(&journal); err != nil {
		return "", 0, err
	}
	err = l.write.QueryRowContext(ctx, "PRAGMA synchronous").Scan(&synchronous)
	return journal, synchronous, err
}
