package procnode

import (
	"crypto/sha256"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"spillway.dev/spillway/e2e/procnode/child"
)

const (
	firstAgentRestart = time.Second
	lastAgentRestart  = 30 * time.Second
	// steadyAgent is how long an agent must have run for its restarts to be
	// quick again.
	steadyAgent = time.Minute
)

// keepAgent runs spillway-agent and starts it again when it dies, later and
// later, until power off.
func (n *node) keepAgent() {
	pause := firstAgentRestart
	for {
		started := time.Now()
		p, err := n.startAgent()
		if err != nil {
			n.log.Error("the agent can't be started, trying again", "after", pause, "error", err)
		} else {
			n.log.Info("agent started", "pid", p.PID())
			<-p.Done() // power off kills it
		}
		select {
		case <-n.power:
			return
		default:
		}
		if err == nil {
			n.log.Warn("the agent ended, starting it again", "status", p.ExitCode(), "after", pause, "log", n.agentLog())
		}
		if time.Since(started) > steadyAgent {
			pause = firstAgentRestart
		}
		select {
		case <-n.power:
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, lastAgentRestart)
	}
}

func (n *node) agentLog() string { return filepath.Join(n.config.Dir, "agent.log") }

func (n *node) startAgent() (*child.Process, error) {
	log, err := os.OpenFile(n.agentLog(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("the agent's log: %w", err)
	}
	defer func() { _ = log.Close() }()
	state := n.config.disk("agent")
	if err := os.MkdirAll(state, 0o700); err != nil {
		return nil, fmt.Errorf("the agent's folder: %w", err)
	}
	args := []string{
		"--client-cert", n.id.certFile, "--client-key", n.id.keyFile,
		"--join", n.config.Join, "--state", state, "--pods", n.config.socket(),
	}
	if n.config.burst() {
		args = append(args, "--front", n.config.Front)
	} else {
		args = append(args, "--on-prem")
	}
	cmd := exec.Command(n.config.Agent, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = n.config.Dir, log, log
	return n.keeper.Start(cmd)
}

// freeFront picks an address of this machine's own in 127.0.0.0/8 on which the
// store's port is free: the same on every boot while nobody else has it.
func freeFront(node, port string) (string, error) {
	var err error
	for i := range 16 {
		sum := sha256.Sum256(fmt.Appendf(nil, "%s/%d", node, i))
		front := net.JoinHostPort(fmt.Sprintf("127.%d.%d.%d", 1+sum[0]%254, sum[1], 1+sum[2]%254), port)
		var l net.Listener
		if l, err = net.Listen("tcp", front); err == nil {
			return front, l.Close()
		}
	}
	return "", fmt.Errorf("no free address for the store's front on port %s in 127.0.0.0/8: a server on all addresses blocks it, let that one listen on 127.0.0.1 only: %w", port, err)
}
