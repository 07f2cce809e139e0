package transit

import (
	"context"
	"log/slog"
	"net/http"
	"time"
)

// Renew renews the token and returns for how long it is good now; 0 means for
// ever. The server refuses a token that can't be renewed.
func (c *Client) Renew(ctx context.Context) (time.Duration, error) {
	var out struct {
		TTL int64 `json:"ttl"` // seconds
	}
	if _, err := c.call(ctx, "renew the token at", http.MethodPost, "auth/token/renew-self", map[string]any{}, nil); err != nil {
		return 0, err
	}
	if _, err := c.call(ctx, "look at the token at", http.MethodGet, "auth/token/lookup-self", nil, &out); err != nil {
		return 0, err
	}
	return time.Duration(out.TTL) * time.Second, nil
}

// How often a token is renewed at the most and at the least.
const (
	renewSoonest = time.Minute
	renewLatest  = time.Hour
)

// KeepToken renews the token at a third of its time, until the context ends. A
// token that can't be renewed has to be written anew by somebody else, so a
// failure is said and tried again, and ends nothing.
func (c *Client) KeepToken(ctx context.Context, log *slog.Logger) {
	for {
		wait := renewLatest
		ttl, err := c.Renew(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			log.Warn("the token of the key service was not renewed; it has to be written into its file anew before it ends", "server", c.cfg.Address, "file", c.cfg.TokenFile, "error", err)
		case ttl > 0:
			wait = min(max(ttl/3, renewSoonest), renewLatest)
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}
