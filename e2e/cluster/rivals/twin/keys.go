package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"math/big"
	"time"
)

const life = 90 * 24 * time.Hour

// issue makes an authority and a server certificate of a run's own, both ECDSA P-256, as ours does.
func issue(name, namespace string) (map[string]any, error) {
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name + "." + namespace + ".rollout"},
		NotAfter: time.Now().Add(life), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	authorityKey, authorityPEM, err := sign(authority, authority, nil)
	if err != nil {
		return nil, err
	}
	server := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, NotAfter: authority.NotAfter,
		DNSNames:    []string{name, name + "." + namespace, name + "." + namespace + ".svc", "localhost"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	serverKey, serverPEM, err := sign(server, authority, authorityKey)
	if err != nil {
		return nil, err
	}
	files := map[string]any{}
	for file, text := range map[string][]byte{"ca.crt": authorityPEM, "tls.crt": append(serverPEM, authorityPEM...)} {
		files[file] = base64.StdEncoding.EncodeToString(text)
	}
	for file, key := range map[string]*ecdsa.PrivateKey{"ca.key": authorityKey, "tls.key": serverKey} {
		der, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			return nil, err
		}
		files[file] = base64.StdEncoding.EncodeToString(encode("PRIVATE KEY", der))
	}
	return files, nil
}

func sign(wanted, parent *x509.Certificate, by *ecdsa.PrivateKey) (*ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	if by == nil {
		by = key
	}
	der, err := x509.CreateCertificate(rand.Reader, wanted, parent, &key.PublicKey, by)
	return key, encode("CERTIFICATE", der), err
}

func encode(kind string, der []byte) []byte {
	var text bytes.Buffer
	_ = pem.Encode(&text, &pem.Block{Type: kind, Bytes: der})
	return text.Bytes()
}
