package seal

import "io"

// Raw forms for the public vectors, which use contexts and keys of any bytes.

func RawReaderAt(src io.ReaderAt, sealed int64, key, context []byte) (*ReaderAt, error) {
	return newReaderAt(src, sealed, key, context)
}

func RawOpener(src io.Reader, key, context []byte) (*Opener, error) {
	if len(key) != keySize {
		_, _, err := derive(key, nil, context)
		return nil, err
	}
	return &Opener{src: src, key: DataKey(key), ctx: context}, nil
}

func RawWriter(dst io.Writer, key, context []byte, random io.Reader) (*Writer, error) {
	return newWriter(dst, key, context, random)
}
