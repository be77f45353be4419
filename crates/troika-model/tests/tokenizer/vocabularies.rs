//! Published vocabularies, cut down to what some texts need, with the texts' ids.

use std::path::Path;

use troika_model::spec::GgufValue;
use troika_model::tokenizer::Tokenizer;
use troika_weights::parse_gguf;

#[test]
fn published_vocabularies_give_the_ids_of_their_texts() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/vocabularies");
    let (mut vocabularies, mut checked) = (0, 0);
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let meta = parse_gguf(&std::fs::read(&path).unwrap()).unwrap().meta;
        let (tokenizer, warning) = Tokenizer::from_gguf(&meta).unwrap().unwrap();
        assert_eq!(warning, None, "{}", path.display());
        let list = |name| meta.get(name).and_then(GgufValue::as_texts).unwrap().iter();
        for (text, ids) in list("test.texts").zip(list("test.ids")) {
            let expected: Vec<u32> = ids.split_whitespace().map(|n| n.parse().unwrap()).collect();
            let got = tokenizer.encode(text, false, false).unwrap();
            assert_eq!(got, expected, "{}: {text:?}", path.display());
            checked += 1;
        }
        vocabularies += 1;
    }
    assert!(vocabularies >= 14 && checked > 600, "{vocabularies}, {checked}");
}
