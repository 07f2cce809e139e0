package ledger_test

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"spillway.dev/spillway/quota"
	"spillway.dev/spillway/quota/ledger"
)

// crashEnv names the ledger to the process that is going to be killed.
const crashEnv = "SPILLWAY_LEDGER_CRASH_TEST"

func TestMain(m *testing.M) {
	if path := os.Getenv(crashEnv); path != "" {
		if err := writeUntilKilled(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(withStore(m.Run))
}

// writeUntilKilled books lives of bursts and says on stdout what was answered
// with yes, one line each, right after the answer.
func writeUntilKilled(path string) error {
	ctx := context.Background()
	l, err := ledger.Open(ctx, path, ledger.Options{})
	if err != nil {
		return err
	}
	epoch, err := l.BeginEpoch(ctx, strconv.Itoa(os.Getpid()))
	if err != nil {
		return err
	}
	err = l.SetBudgets(ctx, epoch, []quota.Budget{
		{ID: "all", Scope: quota.ScopeGlobal, Window: quota.WindowMonth, Limit: eur("1000000"), Hard: true},
	})
	if err != nil {
		return err
	}
	for n := 0; ; n++ {
		uid := fmt.Sprintf("%d-%d", epoch, n)
		r := burst(uid, "1")
		if _, err := l.Reserve(ctx, epoch, r); err != nil {
			return err
		}
		fmt.Println("reserved", uid)
		if err := l.Permit(ctx, epoch, uid, 0); err != nil {
			return err
		}
		fmt.Println("permitted", uid, epoch)
		u := usage(int64(n+1), "2026-10-05 08:00", "2026-10-05 09:00")
		u.Boot = strconv.FormatInt(epoch, 10)
		if err := l.RecordUsage(ctx, epoch, []quota.Usage{u}); err != nil {
			return err
		}
		fmt.Println("used", uid)
		if _, err := l.Settle(ctx, epoch, settlement(uid, "0.25")); err != nil {
			return err
		}
		fmt.Println("settled", uid)
	}
}

// Kill the writer between any two instructions: whatever it was told stands,
// nothing is half done, and the next one goes on.
// cases: C-47 codenotary/immudb (changelog of 1.11.1)
func TestKillNine(t *testing.T) {
	ctx := context.Background()
	path := fresh(t)
	rng := rand.New(rand.NewPCG(7, 7))
	told := make(map[string]string) // the last thing said of each burst
	for round := range 8 {
		for _, line := range killAfter(t, path, 1+rng.IntN(40), time.Duration(rng.IntN(3000))*time.Microsecond) {
			word, uid, _ := strings.Cut(line, " ")
			uid, _, _ = strings.Cut(uid, " ")
			told[uid] = word
		}
		l, err := ledger.Open(ctx, path, ledger.Options{})
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		r, err := l.Verify(ctx)
		if err != nil || !r.OK {
			t.Fatalf("round %d: %v\n%s", round, err, r)
		}
		for uid, word := range told {
			a, err := l.Account(ctx, uid)
			if err != nil {
				t.Fatalf("burst %s was %s and is gone: %v", uid, word, err)
			}
			if word == "settled" && (a.State != quota.Settled || a.Spent != eur("0.25")) || word != "reserved" && len(a.Permits) != 1 {
				t.Errorf("burst %s was %s and is %+v", uid, word, a)
			}
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if len(told) < 8 {
		t.Errorf("only %d bursts were written before the kills", len(told))
	}
}

// killAfter starts a writer, kills it a moment after it has said n lines, and
// returns the lines.
func killAfter(t *testing.T, path string, n int, moment time.Duration) []string {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), crashEnv+"="+path)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var lines []string
	scanner := bufio.NewScanner(out)
	for scanner.Scan() {
		lines = append(lines, scanner.Text())
		if len(lines) == n {
			time.AfterFunc(moment, func() { _ = cmd.Process.Kill() }) // somewhere in the next writes
		}
	}
	_ = cmd.Wait() // it was killed
	if len(lines) < n {
		t.Fatalf("the writer ended by itself after %d lines", len(lines))
	}
	return lines
}
