//! Numbers in network order, appended.

pub(crate) trait Put {
    fn u8(&mut self, v: u8);
    fn u16(&mut self, v: u16);
    fn u32(&mut self, v: u32);
}

impl Put for Vec<u8> {
    fn u8(&mut self, v: u8) {
        self.push(v);
    }
    fn u16(&mut self, v: u16) {
        self.extend(v.to_be_bytes());
    }
    fn u32(&mut self, v: u32) {
        self.extend(v.to_be_bytes());
    }
}
