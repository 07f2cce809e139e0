package controlplane

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// KubeEnv names the environment variable that overrides where [FindBinDir]
// looks: the path of the multi-call binary, or of the folder that holds it.
const KubeEnv = "SPILLWAY_KUBE"

const kube = "kube"

// FindBinDir returns the folder that holds the multi-call binary: what the
// environment variable SPILLWAY_KUBE says, or bin/ in the root of the module
// that the working directory lies in. The error says how to build it.
func FindBinDir() (string, error) {
	if path := os.Getenv(KubeEnv); path != "" {
		if info, err := os.Stat(path); err == nil && !info.IsDir() {
			path = filepath.Dir(path)
		}
		return path, checkKube(path)
	}
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("look for the control plane binary: %w", err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			bin := filepath.Join(dir, "bin")
			return bin, checkKube(bin)
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("no go.mod above the working directory: run inside the repository, or set " + KubeEnv + " to the control plane binary")
		}
		dir = parent
	}
}

func checkKube(dir string) error {
	path := filepath.Join(dir, kube)
	switch info, err := os.Stat(path); {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("the control plane binary %s is missing: build it with `make build`, or set %s: %w", path, KubeEnv, err)
	case err != nil:
		return fmt.Errorf("the control plane binary: %w", err)
	case info.IsDir() || info.Mode()&0o111 == 0:
		return fmt.Errorf("the control plane binary %s can't be executed: build it again with `make build`", path)
	}
	return nil
}

// link makes the names by which the multi-call binary knows its parts.
func (c *ControlPlane) link() error {
	if err := checkKube(c.config.BinDir); err != nil {
		return err
	}
	target, err := filepath.Abs(filepath.Join(c.config.BinDir, kube))
	if err != nil {
		return fmt.Errorf("the control plane binary: %w", err)
	}
	for _, name := range append([]string{"kubectl"}, componentNames()...) {
		path := filepath.Join(c.BinDir, name)
		if err := os.Symlink(target, path); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("link the control plane binary: %w", err)
		}
	}
	return nil
}
